"""The layers that BRO is compared with, each written from its formula, with the same interface and a proved bound."""

from bronet.layers.rivals.eco import ECOConv2d
from bronet.layers.rivals.fourier import CayleyConv2d, CholeskyConv2d, LOTConv2d, SandwichConv2d
from bronet.layers.rivals.potential import CPLConv2d, SLLConv2d
from bronet.layers.rivals.soc import SOCConv2d
from bronet.layers.rivals.spatial import AOLConv2d, BCOPConv2d, StandardConv2d

__all__ = [
    "AOLConv2d",
    "BCOPConv2d",
    "CPLConv2d",
    "CayleyConv2d",
    "CholeskyConv2d",
    "ECOConv2d",
    "LOTConv2d",
    "SLLConv2d",
    "SOCConv2d",
    "SandwichConv2d",
    "StandardConv2d",
]
