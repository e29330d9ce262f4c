"""Lipschitz networks whose robustness is proved: BRO layers, Logit Annealing, BRONet, sound certificates.

Names are imported on first use, so that `import bronet` is instant and the command line starts without torch.
"""

import importlib
from typing import TYPE_CHECKING

from bronet.__about__ import __version__
from bronet.errors import BronetError

if TYPE_CHECKING:
    from bronet import losses as losses
    from bronet.attack import l2_pgd as l2_pgd
    from bronet.attack import linf_pgd as linf_pgd
    from bronet.certificates import Certificates as Certificates
    from bronet.certificates import certified_radius as certified_radius
    from bronet.certificates import certify as certify
    from bronet.graph import CertifiableModel as CertifiableModel
    from bronet.graph import Chain as Chain
    from bronet.graph import check as check
    from bronet.graph import convert as convert
    from bronet.graph import prove as prove
    from bronet.layers import BROConv2d as BROConv2d
    from bronet.layers import BROLinear as BROLinear
    from bronet.layers import CholeskyLinear as CholeskyLinear
    from bronet.layers import Householder as Householder
    from bronet.layers import LastLayerNormalized as LastLayerNormalized
    from bronet.layers import LipschitzRegularizedConv2d as LipschitzRegularizedConv2d
    from bronet.layers import MaxMin as MaxMin
    from bronet.layers import frozen as frozen
    from bronet.models import build_model as build_model
    from bronet.pretrained import create_model as create_model
    from bronet.pretrained import list_models as list_models
    from bronet.pretrained import load_pretrained as load_pretrained
    from bronet.pretrained import push_to_hub as push_to_hub
    from bronet.pretrained import save_pretrained as save_pretrained
    from bronet.run.folder import open_run as open_run
    from bronet.run.own import save_run as save_run
    from bronet.training.own import train as train

_NAMES = {
    "attack": "l2_pgd linf_pgd",
    "certificates": "Certificates certified_radius certify",
    "graph": "CertifiableModel Chain check convert prove",
    "layers": "BROConv2d BROLinear CholeskyLinear Householder LastLayerNormalized LipschitzRegularizedConv2d MaxMin "
    "frozen",
    "models": "build_model",
    "pretrained": "create_model list_models load_pretrained push_to_hub save_pretrained",
    "run.folder": "open_run",
    "run.own": "save_run",
    "training.own": "train",
}
_HOMES = {name: f"bronet.{room}" for room, names in _NAMES.items() for name in names.split()}
_OTHER_ROOMS = ("data", "export", "losses", "ortho", "radius", "recipe", "report")
_ROOMS = {*(room.partition(".")[0] for room in _NAMES), *_OTHER_ROOMS}

__all__ = ["BronetError", "__version__", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"bronet.{name}")
    raise AttributeError(f"module 'bronet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS])
