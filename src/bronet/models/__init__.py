"""Networks for certificates: BRONet and LiResNet, LipConvNet."""

from bronet.models.chain import Chain
from bronet.models.create import build_model, create_model
from bronet.models.model import CertifiableModel

__all__ = ["CertifiableModel", "Chain", "build_model", "create_model"]
