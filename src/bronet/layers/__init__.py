"""Layers: parameters, one forward each, and a proved Lipschitz bound on every one."""

from bronet.layers.activation import Householder, MaxMin
from bronet.layers.base import LipschitzLayer, frozen
from bronet.layers.block import Block
from bronet.layers.bro_conv import BROConv2d
from bronet.layers.dense import BROLinear, CholeskyLinear
from bronet.layers.head import Head, LastLayerNormalized, OrthogonalHead
from bronet.layers.parametrize import orthogonal_bro
from bronet.layers.registry import CONVOLUTIONS, Kind, Request, convolution, register_convolution
from bronet.layers.regularized_conv import LipschitzRegularizedConv2d
from bronet.layers.shape import Flatten, L2NormPool, MaxPool, PixelUnshuffle
from bronet.layers.shift import Bias, Centring, Normalization

__all__ = [
    "CONVOLUTIONS",
    "BROConv2d",
    "BROLinear",
    "Bias",
    "Block",
    "Centring",
    "CholeskyLinear",
    "Flatten",
    "Head",
    "Householder",
    "Kind",
    "L2NormPool",
    "LastLayerNormalized",
    "LipschitzLayer",
    "LipschitzRegularizedConv2d",
    "MaxMin",
    "MaxPool",
    "Normalization",
    "OrthogonalHead",
    "PixelUnshuffle",
    "Request",
    "convolution",
    "frozen",
    "orthogonal_bro",
    "register_convolution",
]
