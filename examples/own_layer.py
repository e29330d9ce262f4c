"""An orthogonal convolution of one's own: a chain of Householder reflections at every frequency.

    W = H_1 H_2 ... H_n,    H_i = I - 2 v_i v_i* / (v_i* v_i)

where v_i is column i of the kernel's Fourier transform. Every H_i is unitary, so W is, whatever the kernel. Use it with

    bronet --layers examples/own_layer.py train digits/quickstart --set model.backbone=chain
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.layers import register_convolution
from bronet.layers.convolution import Options
from bronet.layers.rivals.fourier import FourierConv2d


class ReflectionChainConv2d(FourierConv2d):
    """x -> H_1 H_2 ... H_n x at every frequency; orthogonal for every kernel, and the identity at the start.

    Guaranteed by the base class: a proof bounds the matrices W as they came out, so nothing here need be trusted.
    Arguments as in `bronet.layers.Convolution`; it has no options besides, and keeps channels and size.
    """

    options: ClassVar[frozenset[str]] = frozenset()

    def make_parameters(self, empty: Callable[..., Tensor], options: Options) -> None:
        """Make the kernel, where channels and size are kept."""
        if self.in_channels != self.out_channels or self.stride != 1:
            raise BronetError(
                "a chain convolution must keep channels and size, "
                f"got {self.in_channels} to {self.out_channels} channels with stride {self.stride}"
            )
        super().make_parameters(empty, options)

    def reset_parameters(self) -> None:
        """Start with pairs of equal reflections, which undo each other."""
        nn.init.normal_(self.weight)
        with torch.no_grad():
            self.weight[:, 1::2] = self.weight[:, : self.weight.shape[1] // 2 * 2 : 2]

    def orthogonalize(self, V: Tensor) -> Tensor:
        """Return the product of the reflections along the columns of V, one matrix per frequency."""
        largest = V.abs().amax(-2, keepdim=True)
        V = V / largest.clamp_min(torch.finfo(largest.dtype).tiny)  # no overflow; a zero column stays zero
        U = V / torch.linalg.vector_norm(V, dim=-2, keepdim=True).clamp_min(0.5)  # at least one where V is not zero
        W = torch.eye(V.shape[-2], dtype=V.dtype, device=V.device).expand(*V.shape[:-2], -1, -1)
        for u in U.split(1, dim=-1):
            W = W - 2 * (W @ u) * u.mH
        return W


register_convolution("chain", ReflectionChainConv2d)
