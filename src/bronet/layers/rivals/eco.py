"""ECO (Yu et al. 2022): an orthogonal convolution constructed from its singular values, on a dilated kernel.

On a grid of k x k pixels a k x k kernel reaches everything, and its circular convolution is orthogonal where the k^2
matrices of its spectrum are. Dilated by d, the same kernel acts on images of k d x k d pixels as d^2 copies of that, so
all singular values stay one. Images that are no multiple of k are padded with zeros to the next one and cropped
again, which makes the layer a contraction there.
"""

import math
from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bronet.layers.base import like_input
from bronet.layers.convolution import Convolution, Options, PaddingMode
from bronet.ortho.bro_convolution import Windows
from bronet.ortho.real_dft import DenseDFT, Window, real_dft
from bronet.ortho.spectrum import centred_spectrum, real_blocks, rows_of_channels
from bronet.proof.proved_map import Product, ProvedMap, linear
from bronet.proof.reflector import FourierFrame
from bronet.proof.rounding import up
from bronet.proof.spectral import absolute_norm, largest_singular_value

# Angles beyond this are scaled back: the exponential would lose all its digits to squarings.
_LARGEST_ANGLE = 256.0


class ECOConv2d(Convolution[torch.dtype, Tensor]):
    """exp(V - V*) at each of the k^2 frequencies of the kernel's own grid; square, at max(c_in, c_out) channels.

    Guaranteed: orthogonal on images whose sides are multiples of k (after the stride) and with equal channels, up to
    rounding; elsewhere a contraction. The kernel is dilated to reach over the whole image.

    Args: as in `Convolution`; padding is always circular.
    """

    padding_modes: ClassVar[tuple[PaddingMode, ...]] = ("circular",)
    recordable: ClassVar[bool] = False

    def make_parameters(self, empty: Callable[..., Tensor], _options: Options) -> None:
        c = max(self.inner_channels, self.out_channels)
        self.weight = nn.Parameter(empty(c, c, self.kernel_size, self.kernel_size))

    def reset_parameters(self) -> None:
        """Start from normals of variance 1 / (c k^2): angles of order one at every frequency."""
        nn.init.normal_(self.weight, std=1 / math.sqrt(self.weight.shape[0] * self.kernel_size**2))

    def derive(self, key: torch.dtype) -> Tensor:
        k = self.kernel_size
        V = centred_spectrum(self.weight.to(key), (k, k), dense=True)
        skew = V - V.mH
        size = torch.linalg.matrix_norm(skew, keepdim=True)
        return real_blocks(torch.linalg.matrix_exp(skew * (_LARGEST_ANGLE / size.clamp_min(_LARGEST_ANGLE))))

    def convolve(self, x: Tensor) -> Tensor:
        W, k = like_input(self.derived(self.precision_for(x)), x), self.kernel_size
        basis = real_dft(Window((k, k), (k, k)), dense=True, dtype=W.dtype, device=x.device)
        assert isinstance(basis, DenseDFT)
        return on_lattices(x, self._shrunk(W), basis, k)

    def _shrunk(self, W: Tensor) -> Tensor:
        rows = rows_of_channels(W, self.out_channels)
        return rows_of_channels(rows.mT, self.inner_channels).mT

    def proved_convolve(self, size: tuple[int, int]) -> ProvedMap:
        k = self.kernel_size
        frame = FourierFrame.of(Windows.of((k, k), 0), self.weight.device, dense=True)
        W, basis = self._shrunk(self.derive(torch.float64)), frame.source
        assert isinstance(basis, DenseDFT)
        norm = largest_singular_value(W)
        products = [*frame.analysis(), Product(norm, absolute_norm(W), W.shape[-1]), *frame.synthesis()]
        apply = lambda x: on_lattices(x, W, basis, k)  # noqa: E731
        return linear(apply, (self.out_channels, *size), products, up(norm * frame.norm**2))

    def bound_for_every_size(self) -> float:
        """Return the bound on the kernel's own grid, which all others share."""
        side = self.kernel_size * self.stride
        return self.proved((self.in_channels, side, side)).lipschitz


def on_lattices(x: Tensor, W: Tensor, basis: DenseDFT, k: int) -> Tensor:
    """Return D' W D of every k x k lattice of pixels that lie h/k and w/k apart."""
    b, c, h, w = x.shape
    out_channels = W.shape[-2] // 2  # real blocks: real rows, then imaginary ones
    H, Wd = math.ceil(h / k) * k, math.ceil(w / k) * k
    x = F.pad(x, (0, Wd - w, 0, H - h))
    lattices = x.unflatten(3, (k, Wd // k)).unflatten(2, (k, H // k))  # b c k dh k dw
    pixels = lattices.permute(2, 4, 1, 3, 5, 0).reshape(k * k, c, -1)
    y = basis.synthesis(W @ basis.analysis(pixels)).view(k, k, out_channels, H // k, Wd // k, b)
    return y.permute(5, 2, 0, 3, 1, 4).reshape(b, out_channels, H, Wd)[..., :h, :w]
