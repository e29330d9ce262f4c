"""The layers that BRO is compared with, each written from its formula, with the same interface and a proved bound."""

from bronet.layers.rivals.aol import AOLConv2d
from bronet.layers.rivals.bcop import BCOPConv2d
from bronet.layers.rivals.cayley import CayleyConv2d
from bronet.layers.rivals.cholesky_conv import CholeskyConv2d
from bronet.layers.rivals.cpl import CPLConv2d
from bronet.layers.rivals.eco import ECOConv2d
from bronet.layers.rivals.lot import LOTConv2d
from bronet.layers.rivals.sandwich import SandwichConv2d
from bronet.layers.rivals.sll import SLLConv2d
from bronet.layers.rivals.soc import SOCConv2d
from bronet.layers.rivals.standard import StandardConv2d

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
