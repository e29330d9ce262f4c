"""Convolutions given by one matrix W_f per frequency: Cayley, Cholesky, LOT and ECO; Sandwich, given by two.

    y = D' W_f D x

with the real basis D of the padded grid, half of the spectrum, and W_f from the kernel's centred spectrum. The bound is
that of the W_f as stored, times the stored basis' own defect; how W_f was made need not be trusted.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bronet.layers.base import like_input
from bronet.layers.convolution import Convolution, Options, PaddingMode
from bronet.ortho.bro_convolution import Windows
from bronet.ortho.orthogonal_maps import LOT_STEPS, cayley, cholesky_orthogonal, lot_orthogonal
from bronet.ortho.real_dft import RealDFT, is_dense, real_dft
from bronet.ortho.spd import CHOLESKY_RIDGE
from bronet.ortho.spectrum import centred_spectrum, real_blocks
from bronet.proof.proved_map import (
    Product,
    ProvedMap,
    arithmetic,
    gamma,
    linear_map,
    norm_of_constant,
    norm_of_products,
    rounding_of_products,
    up,
)
from bronet.proof.reflector import FourierFrame
from bronet.proof.spectral import absolute_norm, largest_singular_value

# A LOT layer whose worst singular value is further from one than this is called not converged.
_CONVERGED = 1e-3


# Angles beyond this are scaled back: the exponential would lose all its digits to squarings.
_LARGEST_ANGLE = 256.0


class GridKey(NamedTuple):
    """What matrices depend on besides the parameters."""

    grid: tuple[int, int]
    dense: bool
    dtype: torch.dtype


class FourierConv2d(Convolution[GridKey, tuple[Tensor, ...]]):
    """A convolution given by a matrix for each frequency; arguments as in `Convolution`.

    Where the channels differ (after the stride), the layer is semi-orthogonal. The parameter has `kernel_size` taps per
    axis; the convolution itself reaches over the whole padded grid. `padding` may be any number of at least one.
    """

    options: ClassVar[frozenset[str]] = frozenset({"residual_depth"})
    least_padding: ClassVar[int | None] = 1

    @abstractmethod
    def orthogonalize(self, V: Tensor) -> Tensor:
        """Return the matrices W of the parameter's complex matrices V, (f, c_out, c_in)."""

    def derive(self, key: GridKey) -> tuple[Tensor, ...]:
        """Return the matrices that are applied, as real blocks."""
        V = centred_spectrum(self.V(key.dtype), key.grid, dense=key.dense)
        return (real_blocks(self.orthogonalize(V)),)

    def convolve(self, x: Tensor) -> Tensor:
        window = Windows.of((x.shape[-2], x.shape[-1]), self.padding).source
        dense = is_dense(window.grid, x.device)
        matrices = [like_input(W, x) for W in self.derived(GridKey(window.grid, dense, self.precision_for(x)))]
        basis = real_dft(window, dense=dense, dtype=matrices[0].dtype, device=x.device)
        return self.apply_matrices(x, matrices, basis)

    def apply_matrices(self, x: Tensor, matrices: Sequence[Tensor], basis: RealDFT) -> Tensor:
        """Return the output for images x and the matrices in their precision."""
        return apply_spectrum(x, matrices[0], basis)

    def proved_convolve(self, size: tuple[int, int]) -> ProvedMap:
        windows = Windows.of(size, self.padding)
        frame = FourierFrame.of(windows, self.weight.device)
        return self.proved_matrices(frame, self.derive(GridKey(windows.source.grid, frame.dense, torch.float64)), size)

    def proved_matrices(self, frame: FourierFrame, matrices: tuple[Tensor, ...], size: tuple[int, int]) -> ProvedMap:
        """Return the proof of `apply_matrices` for images of this size and matrices in float64."""
        (W,) = matrices
        norm = largest_singular_value(W)
        apply, bound = (lambda x: apply_spectrum(x, W, frame.source)), up(norm * frame.norm**2)
        proved = linear_map(apply, (self.out_channels, *size), _around(frame, W, norm), bound)
        return replace(proved, remark=self.remark(W))

    def remark(self, W: Tensor) -> str:
        """Return what a reader of a certificate should know of the matrices W; nothing by default."""
        return ""


class CayleyConv2d(FourierConv2d):
    """x -> (I - A)(I + A)^-1 x with A = V - V* (Trockman and Kolter 2021); arguments as in `Convolution`.

    Orthogonal for every parameter, up to rounding. Where channels differ, the tall form of the transform is used, with
    a solve of the smaller size. There is no residual re-parameterisation: its identity would cancel in V - V*, and
    V = 0 is the identity already.
    """

    options: ClassVar[frozenset[str]] = frozenset()
    recordable: ClassVar[bool] = False

    def reset_parameters(self) -> None:
        """Start like a plain convolution (uniform, variance 1 / (3 c_in k^2)), as the published layer does."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def orthogonalize(self, V: Tensor) -> Tensor:
        return cayley(V)


class CholeskyConv2d(FourierConv2d):
    """x -> L^-1 V x at every frequency, L L* = V V* + ridge (Hu et al. 2024, per frequency as in Table 3).

    Singular values s / sqrt(s^2 + e): at most one for every parameter, and close to one where V is well conditioned.
    The ridge is that of the dense layer. Arguments as in `FourierConv2d`.
    """

    recordable: ClassVar[bool] = False

    def orthogonalize(self, V: Tensor) -> Tensor:
        return cholesky_orthogonal(V, ridge=CHOLESKY_RIDGE)


class LOTConv2d(FourierConv2d):
    """x -> (V V*)^-1/2 V x (Xu et al. 2022) by Newton's iteration; arguments as in `FourierConv2d`.

    A contraction after any few steps, those of the published layer here; an orthogonal map in the limit, which is not
    reached for ill-conditioned parameters (Figure 13). The bound is proved for the matrices that came out, and a
    certificate carries a remark where they are not orthogonal.
    """

    steps: int = LOT_STEPS

    def orthogonalize(self, V: Tensor) -> Tensor:
        return lot_orthogonal(V, steps=self.steps)

    def remark(self, W: Tensor) -> str:
        m, n = W.shape[-2] // 2, W.shape[-1] // 2
        matrices = torch.complex(W[:, :m, :n], W[:, m:, :n])  # the first block column says it all, at half the size
        squares = torch.linalg.eigvalsh(matrices @ matrices.mH if m <= n else matrices.mH @ matrices)
        smallest, largest = float(squares.min().clamp_min(0).sqrt()), float(squares.max().sqrt())
        if max(abs(smallest - 1), abs(largest - 1)) <= _CONVERGED:
            return ""
        return (
            f"Newton's iteration has not converged after {self.steps} steps: "
            f"singular values from {smallest:.3g} to {largest:.9g}"
        )


class ECOConv2d(FourierConv2d):
    """x -> exp(V - V*) x at each of the k^2 frequencies of the kernel's own grid (Yu et al. 2022).

    Square, at max(c_in, c_out) channels. On a grid of k x k pixels a k x k kernel reaches everything. Dilated by d, it
    acts on images of k d x k d pixels as d^2 copies of that, so all singular values stay one. Images that are no
    multiple of k are padded with zeros to the next one and cropped again: a contraction.

    Guaranteed: orthogonal on images whose sides are multiples of k (after the stride) and with equal channels, up to
    rounding; elsewhere a contraction. Arguments as in `Convolution`; padding is always circular.
    """

    options: ClassVar[frozenset[str]] = frozenset()
    padding_modes: ClassVar[tuple[PaddingMode, ...]] = ("circular",)
    recordable: ClassVar[bool] = False

    def make_parameters(self, empty: Callable[..., Tensor], _options: Options) -> None:
        c = max(self.inner_channels, self.out_channels)
        self.own_kernel(empty(c, c, self.kernel_size, self.kernel_size))

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


class SandwichConv2d(FourierConv2d):
    """sqrt(2) A* Psi relu(sqrt(2) Psi^-1 B x + b) with A A* + B B* = I (Wang and Manchester 2023).

    A nonlinear 1-Lipschitz convolution, its hidden layer of c_out channels; arguments as in `Convolution`, `padding` of
    at least one. A and B come from one tall Cayley transform at every frequency. As relu is positively homogeneous, Psi
    only scales the bias. Jacobian 2 A* D B with D diagonal in [0, 1]; with S = B* D B and A A* <= t I - B B* its square
    is at most 4 (t S - S^2) <= t^2, so the norm is at most t, the squared norm of (A, B) as stored.
    """

    options: ClassVar[frozenset[str]] = frozenset()
    recordable: ClassVar[bool] = False

    def make_parameters(self, empty: Callable[..., Tensor], _options: Options) -> None:
        c, k = self.out_channels, self.kernel_size
        self.own_kernel(empty(c + self.inner_channels, c, k, k))
        self.bias, self.log_psi = nn.Parameter(empty(c)), nn.Parameter(empty(c))

    def reset_parameters(self) -> None:
        """Start from normals that keep the variance, as the published layer does."""
        nn.init.xavier_normal_(self.weight)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.log_psi)

    def derive(self, key: GridKey) -> tuple[Tensor, ...]:
        """Return sqrt(2) B, from input to hidden channels, and sqrt(2) A*, from hidden to output channels."""
        V = centred_spectrum(self.V(key.dtype), key.grid, dense=key.dense)
        W = math.sqrt(2) * self.orthogonalize(V)
        return real_blocks(W[:, self.out_channels :].mH), real_blocks(W[:, : self.out_channels])

    def orthogonalize(self, V: Tensor) -> Tensor:
        return cayley(V)

    def _shift(self, dtype: torch.dtype) -> Tensor:
        return (self.log_psi.to(dtype).exp() * self.bias.to(dtype))[:, None, None]

    def apply_matrices(self, x: Tensor, matrices: Sequence[Tensor], basis: RealDFT) -> Tensor:
        into, out = matrices
        hidden = F.relu(apply_spectrum(x, into, basis) + self._shift(x.dtype))
        return apply_spectrum(hidden, out, basis)

    def proved_matrices(self, frame: FourierFrame, matrices: tuple[Tensor, ...], size: tuple[int, int]) -> ProvedMap:
        (into, out), shift = matrices, self._shift(torch.float64)
        both = largest_singular_value(torch.cat((into.mT, out), dim=-2))
        lipschitz = up(both**2 / 2 * frame.norm**4)

        def apply(x: Tensor) -> Tensor:
            hidden = F.relu(apply_spectrum(x, into, frame.source) + shift)
            return apply_spectrum(hidden, out, frame.source)

        size_of_shift = norm_of_constant(shift, math.prod(size))
        gain, offset = _rounding_around_relu(_around(frame, into, both), _around(frame, out, both), size_of_shift)
        return ProvedMap(apply, (self.out_channels, *size), lipschitz, gain, offset)


def _around(frame: FourierFrame, W: Tensor, norm: float) -> list[Product]:
    """Return the products of D' W D."""
    return [*frame.analysis(), Product(norm, absolute_norm(W), W.shape[-1]), *frame.synthesis()]


def _rounding_around_relu(first: list[Product], second: list[Product], shift: float) -> tuple[float, float]:
    """Return gain and offset of the two chains of products with a shift of this norm and a relu between them."""
    size, (error, lost) = norm_of_products(first), rounding_of_products(first)
    hidden = error + gamma(1) * (size + error)
    hidden_offset = lost + gamma(1) * (shift + lost) + arithmetic().underflow
    back_size, (back, back_lost) = norm_of_products(second), rounding_of_products(second)
    gain = back_size * hidden + back * (size + hidden)
    offset = back_size * hidden_offset + back * (shift + hidden_offset) + back_lost
    return up(gain), up(offset)


def apply_spectrum(x: Tensor, W: Tensor, basis: RealDFT) -> Tensor:
    """Return D' W D x for (b, c, h, w) images; the memory order of the result is (h, w, c, b)."""
    b, c, h, w = x.shape
    pixels = x.permute(2, 3, 1, 0).reshape(h * w, c, b)
    y = basis.synthesis(W @ basis.analysis(pixels))
    return y.view(h, w, W.shape[-2] // 2, b).permute(3, 2, 0, 1)


def _on_lattices(convolve: Callable[[Tensor], Tensor], x: Tensor, k: int) -> Tensor:
    """Convolve every k x k lattice of pixels that lie h/k and w/k apart, as an image of its own."""
    b, c, h, w = x.shape
    down, right = math.ceil(h / k), math.ceil(w / k)
    x = F.pad(x, (0, k * right - w, 0, k * down - h))
    lattices = x.unflatten(3, (k, right)).unflatten(2, (k, down)).permute(3, 5, 0, 1, 2, 4)  # down right b c k k
    y = convolve(lattices.reshape(-1, c, k, k))
    y = y.unflatten(0, (down, right, b)).permute(2, 3, 4, 0, 5, 1)  # b c k down k right
    return y.reshape(b, -1, k * down, k * right)[..., :h, :w]
