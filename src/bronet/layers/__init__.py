"""Layers: parameters, one forward each, and a proved Lipschitz bound on every one."""

from bronet.layers.activation import Block, Householder, MaxMin
from bronet.layers.base import LipschitzLayer
from bronet.layers.bro_conv import BROConv2d, BROConvTranspose2d
from bronet.layers.compose import Groups, Mix, Parallel, Residual
from bronet.layers.convolution import AnyConvolution, Convolution, PaddingMode
from bronet.layers.dense import BROLinear, CholeskyLinear, orthogonal_bro
from bronet.layers.execution import frozen
from bronet.layers.head import Head, LastLayerNormalized, OrthogonalHead, SmoothHead
from bronet.layers.registry import CONVOLUTIONS, register_convolution
from bronet.layers.regularized_conv import LipschitzRegularizedConv2d
from bronet.layers.shape import Flatten, L2NormPool, MaxPool, PixelUnshuffle, RepeatedPixels, ScaledMeanPool
from bronet.layers.shift import Bias, Centring, Normalization, Scale, Standardization

__all__ = [
    "CONVOLUTIONS",
    "AnyConvolution",
    "BROConv2d",
    "BROConvTranspose2d",
    "BROLinear",
    "Bias",
    "Block",
    "Centring",
    "CholeskyLinear",
    "Convolution",
    "Flatten",
    "Groups",
    "Head",
    "Householder",
    "L2NormPool",
    "LastLayerNormalized",
    "LipschitzLayer",
    "LipschitzRegularizedConv2d",
    "MaxMin",
    "MaxPool",
    "Mix",
    "Normalization",
    "OrthogonalHead",
    "PaddingMode",
    "Parallel",
    "PixelUnshuffle",
    "RepeatedPixels",
    "Residual",
    "Scale",
    "ScaledMeanPool",
    "SmoothHead",
    "Standardization",
    "frozen",
    "orthogonal_bro",
    "register_convolution",
]
