"""The BRO convolution as complex matrices, one for each frequency: what a CPU trains with where n is not small.

    y = E x - 2 D' V p,    p = S^-1 z,    z = V* u,    u = D x,    S = V*V + e I

It is the real form of `bro_convolution` with complex arithmetic inside each frequency, so that S is of n x n instead of
2n x 2n; where a frequency is its own conjugate, all is real and a quarter of the work. S is factored, not inverted:
there are fewer images than rows (`block_factor`).

The backward pass is that of the real form: with q = S^-1 V* h for h = D g, the gradient of x is E'g - 2 D' V q, and
that of V is -2 ((h - V q) p* + (u - V p) q*).
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from bronet.ortho.block_factor import BlockFactor, Stacked
from bronet.ortho.bro_convolution import Geometry, pixels_first
from bronet.ortho.products import memoized, product
from bronet.ortho.real_dft import DenseDFT, RealDFT, Window, frequencies, kernel_basis, real_dft
from bronet.ortho.reflector import embed_channels
from bronet.ortho.spd import ridge_slope, scale_of

# Frequencies computed together: enough for few calls, and so few that their temporary memory is used again.
_AT_ONCE = 12


class _Kind(NamedTuple):
    """A few frequencies where numbers have as many parts, and the basis that takes a kernel's taps there."""

    parts: int
    basis: Float[Tensor, "parts_f taps"]


@dataclass(frozen=True)
class _Frequencies:
    """D with the self-conjugate frequencies last and without their rows of zeros."""

    D: RealDFT
    kinds: tuple[_Kind, ...]

    def __len__(self) -> int:
        return sum(len(kind.basis) for kind in self.kinds)

    def kernels(self, V: Float[Tensor, "c n k k"], scale: Float[Tensor, ""]) -> list[Stacked]:
        """Return the spectrum of V / scale for either kind of frequency."""
        c, n, *_ = V.shape
        taps = V.reshape(c * n, -1).mT.contiguous()
        return [
            Stacked(((kind.basis / scale) @ taps).view(-1, kind.parts * c, n), kind.parts == 2) for kind in self.kinds
        ]

    def adjoint(self, spectra: list[Tensor], shape: torch.Size, factor: Float[Tensor, ""]) -> Tensor:
        """Return `factor` times the gradient of V for gradients of its spectrum."""
        c, n, *taps = shape
        gradient = factor.new_zeros(taps[0] * taps[1], c * n)
        for kind, g in zip(self.kinds, spectra, strict=True):
            gradient.addmm_(kind.basis.mT * factor, g.view(-1, c * n))
        return gradient.view(*taps, c, n).permute(2, 3, 0, 1)

    def analysis(self, pixels: Float[Tensor, "pixels b c"]) -> list[Tensor]:
        """Return D x for either kind of frequency."""
        if isinstance(self.D, DenseDFT):
            return self.of_each_kind(product(self.D.matrix, pixels.flatten(1)).view(-1, *pixels.shape[1:]))
        return self.of_each_kind(self.D.analysis(pixels).view(-1, *pixels.shape[1:]))

    def of_each_kind(self, u: Float[Tensor, "parts_f b c"]) -> list[Tensor]:
        """Return views as (frequency, parts and batch, channel)."""
        shares, (b, c) = u.split([len(kind.basis) for kind in self.kinds]), u.shape[1:]
        return [share.view(-1, kind.parts * b, c) for share, kind in zip(shares, self.kinds, strict=True)]


class FrequencyReflection(torch.autograd.Function):
    """x, V -> y with the backward pass of the module's docstring; the output is cropped as the input was padded."""

    @staticmethod
    def forward(ctx, x: Tensor, V: Tensor, geometry: Geometry) -> Tensor:  # type: ignore[no-untyped-def, override]
        (c_in, c_out), scale, pixels = (x.shape[1], geometry.c_out), scale_of(V), _pixels(x)
        frequencies = _frequencies_for(geometry, V)
        kernels, spectra = frequencies.kernels(V, scale), frequencies.analysis(pixels)
        factors = [BlockFactor.of_gram(K, geometry.ridge) for K in kernels]
        v = x.new_empty(len(frequencies), len(x), c_out)
        kept = []
        for K, factor, u, out in zip(kernels, factors, spectra, frequencies.of_each_kind(v), strict=True):
            p = factor.solve(K.conjugate_after(u))
            left_over = K.transpose_after(p)
            out.copy_(left_over[..., :c_out])
            left_over.neg_()[..., :c_in].add_(u)
            kept += [K.parts, p, left_over]
        ctx.save_for_backward(scale, *kept)
        ctx.geometry, ctx.c_in, ctx.factors, ctx.shape, ctx.frequencies = geometry, c_in, factors, V.shape, frequencies
        return _images(frequencies.D.reflected(embed_channels(pixels, c_out, dim=2), v, 1), geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:  # type: ignore[no-untyped-def, override]
        scale, *kept = ctx.saved_tensors
        geometry, frequencies, pixels = ctx.geometry, ctx.frequencies, _pixels(grads[0])
        w = pixels.new_empty(len(frequencies), pixels.shape[1], ctx.c_in)
        slope, gradients = ridge_slope(geometry.ridge, ctx.shape[1], pixels.dtype), []
        spectra, outs = frequencies.analysis(pixels), frequencies.of_each_kind(w)
        of_kinds = zip(kept[::3], kept[1::3], kept[2::3], ctx.factors, spectra, outs, strict=True)
        for (V_f, p, left_over, factor, h, out), (parts, _) in zip(of_kinds, frequencies.kinds, strict=True):
            K = Stacked(V_f, parts == 2)
            q = factor.solve(K.conjugate_after(h))
            left = K.transpose_after(q)
            out.copy_(left[..., : ctx.c_in])
            if not ctx.needs_input_grad[1]:
                continue
            left.neg_()[..., : geometry.c_out].add_(h)
            both = K.doubled(_joined(left, left_over, parts))
            gradient = product(both.mT, _joined(p, q, parts))
            if slope > torch.finfo(gradient.dtype).eps:  # below that the ridge's own gradient is lost in rounding
                gradient.addcmul_((p * q).sum((1, 2), keepdim=True), K.parts, value=-2 * slope)
            gradients.append(gradient)
        gx = _images(frequencies.D.reflected(embed_channels(pixels, ctx.c_in, dim=2), w, 1), geometry)
        if not ctx.needs_input_grad[1]:
            return gx, None, None
        return gx, frequencies.adjoint(gradients, ctx.shape, -2 / scale), None


def _joined(a: Tensor, b: Tensor, parts: int) -> Tensor:
    """Return the rows of two batches as those of one."""
    return torch.cat((a.unflatten(1, (parts, -1)), b.unflatten(1, (parts, -1))), dim=2).flatten(1, 2)


def _frequencies_for(geometry: Geometry, V: Tensor) -> _Frequencies:
    return _frequencies(geometry.windows.source, (V.shape[2], V.shape[3]), dense=geometry.dense, dtype=V.dtype)


@memoized(64)
def _frequencies(window: Window, taps: tuple[int, int], *, dense: bool, dtype: torch.dtype) -> _Frequencies:
    place = torch.device("cpu")
    D = real_dft(window, dense=dense, dtype=dtype, device=place)
    basis = kernel_basis(window.grid, taps, dense=dense, dtype=dtype, device=place).unflatten(0, (2, -1))
    alone = dense & (2 * frequencies(window.grid, dense=dense) % torch.tensor(window.grid) == 0).all(1)
    kinds = (_Kind(2, basis[:, ~alone].transpose(0, 1).flatten(0, 1)), _Kind(1, basis[0, alone]))
    if isinstance(D, DenseDFT):
        rows = D.matrix.unflatten(0, (-1, 2))
        D = DenseDFT(torch.cat((rows[~alone].flatten(0, 1), rows[alone, 0])))
    chunks = (_Kind(parts, few) for parts, basis in kinds for few in basis.split(parts * _AT_ONCE) if len(few))
    return _Frequencies(D, tuple(chunks))


def _pixels(x: Float[Tensor, "b c h w"]) -> Float[Tensor, "pixels b c"]:
    return pixels_first(x).permute(2, 3, 0, 1).flatten(0, 1)


def _images(y: Float[Tensor, "pixels b c"], geometry: Geometry) -> Float[Tensor, "b c h w"]:
    return y.view(*geometry.windows.target.size, *y.shape[1:]).permute(2, 3, 0, 1)
