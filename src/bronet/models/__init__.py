"""Networks for certificates: BRONet and LiResNet, LipConvNet, LipNeXt."""

from bronet.graph.model import CertifiableModel, Chain
from bronet.models.create import Network, build_model

__all__ = ["CertifiableModel", "Chain", "Network", "build_model"]
