"""ECO (Yu et al. 2022): an orthogonal convolution constructed from its singular values, on a dilated kernel.

On a grid of k x k pixels a k x k kernel reaches everything, and its circular convolution is orthogonal where the k^2
matrices of its spectrum are. Dilated by d, the same kernel acts on images of k d x k d pixels as d^2 copies of that, so
all singular values stay one. Images that are no multiple of k are padded with zeros to the next one and cropped
again, which makes the layer a contraction there.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bronet.layers.convolution import Options, PaddingMode
from bronet.layers.rivals.fourier import FourierConv2d
from bronet.proof.proved_map import ProvedMap

# Angles beyond this are scaled back: the exponential would lose all its digits to squarings.
_LARGEST_ANGLE = 256.0


class ECOConv2d(FourierConv2d):
    """exp(V - V*) at each of the k^2 frequencies of the kernel's own grid; square, at max(c_in, c_out) channels.

    Guaranteed: orthogonal on images whose sides are multiples of k (after the stride) and with equal channels, up to
    rounding; elsewhere a contraction. The kernel is dilated to reach over the whole image.

    Args: as in `Convolution`; padding is always circular.
    """

    options: ClassVar[frozenset[str]] = frozenset()
    padding_modes: ClassVar[tuple[PaddingMode, ...]] = ("circular",)
    recordable: ClassVar[bool] = False

    def make_parameters(self, empty: Callable[..., Tensor], _options: Options) -> None:
        c = max(self.inner_channels, self.out_channels)
        self.weight = nn.Parameter(empty(c, c, self.kernel_size, self.kernel_size))
        self.residual = None

    def reset_parameters(self) -> None:
        """Start from normals of variance 1 / (c k^2): angles of order one at every frequency."""
        nn.init.normal_(self.weight, std=1 / math.sqrt(self.weight.shape[0] * self.kernel_size**2))

    def orthogonalize(self, V: Tensor) -> Tensor:
        skew = V - V.mH
        size = torch.linalg.matrix_norm(skew, keepdim=True)
        W = torch.linalg.matrix_exp(skew * (_LARGEST_ANGLE / size.clamp_min(_LARGEST_ANGLE)))
        return W[:, : self.out_channels, : self.inner_channels]

    def convolve(self, x: Tensor) -> Tensor:
        return _on_lattices(super().convolve, x, self.kernel_size)

    def proved_convolve(self, size: tuple[int, int]) -> ProvedMap:
        k = self.kernel_size
        inner = super().proved_convolve((k, k))
        apply, shape = inner.apply, (self.out_channels, *size)
        return replace(inner, apply=lambda x: _on_lattices(apply, x, k), output_shape=shape)

    def bound_for_every_size(self) -> float:
        """Return the bound on the kernel's own grid, which all others share."""
        side = self.kernel_size * self.stride
        return self.proved((self.in_channels, side, side)).lipschitz


def _on_lattices(convolve: Callable[[Tensor], Tensor], x: Tensor, k: int) -> Tensor:
    """Convolve every k x k lattice of pixels that lie h/k and w/k apart, as an image of its own."""
    b, c, h, w = x.shape
    down, right = math.ceil(h / k), math.ceil(w / k)
    x = F.pad(x, (0, k * right - w, 0, k * down - h))
    lattices = x.unflatten(3, (k, right)).unflatten(2, (k, down)).permute(3, 5, 0, 1, 2, 4)  # down right b c k k
    y = convolve(lattices.reshape(-1, c, k, k))
    y = y.unflatten(0, (down, right, b)).permute(2, 3, 4, 0, 5, 1)  # b c k down k right
    return y.reshape(b, -1, k * down, k * right)[..., :h, :w]
