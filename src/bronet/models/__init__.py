"""Networks for certificates: BRONet and LiResNet, LipConvNet."""

from bronet.graph.model import CertifiableModel, Chain
from bronet.models.create import build_model, create_model

__all__ = ["CertifiableModel", "Chain", "build_model", "create_model"]
