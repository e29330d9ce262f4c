"""The BRO convolution as complex matrices, one for each frequency: what a CPU trains with where n is not small.

    y = E x - 2 D' V p,    p = S^-1 V* u,    u = D x,    S = V*V + e I

It is the real form of `bro_convolution` with complex numbers inside each frequency, so that S is of n x n instead of
2n x 2n; where a frequency is its own conjugate, all is real and a quarter of the work. S is factored and solved for the
images of a batch instead of inverted, as these are fewer than its rows.

A batch of vectors is stored as rows, so that images keep their channels side by side: the rows of u are u', those of
V*u are u'conj(V). Real and imaginary parts lie apart, so that all products are batches of real ones without a copy.

The backward pass is that of the real form. For a gradient g of y let h = D g, q = S^-1 V* h and l = h - V q, and let
r = u - V p: the gradient of V is -2 (l p* + r q*), that of x is 2 D' l - E'g. Likewise y = 2 D' r - E x, because D'D is
the identity of the window.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Inexact
from torch import Tensor
from torch.autograd.function import once_differentiable

from bronet.ortho.bro_convolution import Geometry, pixels_first
from bronet.ortho.products import memoized
from bronet.ortho.real_dft import DenseDFT, RealDFT, Window, frequencies, kernel_basis, real_dft
from bronet.ortho.reflector import embed_channels
from bronet.ortho.spd import add_ridge, factor_for_solving, ridge_slope, scale_of, solved

# (part, frequency, row, column): real and imaginary parts of matrices, or one part where they are real.
Parts = Float[Tensor, "_ _ _ _"]


class _Kind(NamedTuple):
    """Frequencies at which numbers have as many parts: two, or one where each is its own conjugate."""

    parts: int
    basis: Float[Tensor, "parts_f taps"]

    def spectrum(self, V: Float[Tensor, "c n k k"], scale: Tensor) -> Parts:
        """Return the matrices of V / scale."""
        c, n, *_ = V.shape
        return ((self.basis / scale) @ V.reshape(c * n, -1).mT).view(self.parts, -1, c, n)

    def taps(self, spectrum: Parts, factor: Tensor) -> Float[Tensor, "c_n taps"]:
        """Return `factor` times the gradient of a kernel for that of its matrices."""
        return spectrum.flatten(2).flatten(0, 1).mT @ (self.basis * factor)


@dataclass(frozen=True)
class _Fourier:
    """D for images as rows of channels, the frequencies of either kind together."""

    D: RealDFT
    kinds: tuple[_Kind, ...]

    def analysed(self, pixels: Float[Tensor, "b pixels k"], c: int) -> list[Parts]:
        """Return D x of images for either kind of frequency, with zeros for the channels that they lack."""
        (b, _, k), rows = pixels.shape, self.D.of_images(pixels)
        spectra = []
        for share, (parts, _) in zip(self._shares(rows), self.kinds, strict=True):
            u = rows.new_empty(parts, share.shape[1] // parts, b, c)
            u[..., :k] = share.unflatten(1, (-1, parts)).permute(2, 1, 0, 3)
            u[..., k:] = 0
            spectra.append(u)
        return spectra

    def reflected(self, pixels: Float[Tensor, "b pixels c"], spectra: list[Parts]) -> Float[Tensor, "b pixels c"]:
        """Return 2 D' r - x for r of either kind of frequency, of whose channels the first are taken."""
        b, _, c = pixels.shape
        rows = pixels.new_empty(b, sum(len(basis) for _, basis in self.kinds), c)
        for share, (parts, _), r in zip(self._shares(rows), self.kinds, spectra, strict=True):
            share.unflatten(1, (-1, parts)).copy_(r[..., :c].permute(2, 1, 0, 3))
        return self.D.to_images(pixels, rows)

    def _shares(self, rows: Float[Tensor, "b rows c"]) -> tuple[Tensor, ...]:
        """Return the rows of either kind, ordered (frequency, part)."""
        return rows.split([len(basis) for _, basis in self.kinds], dim=1)


class FrequencyReflection(torch.autograd.Function):
    """x, V -> y with the backward pass of the module's docstring; the output is cropped as the input was padded."""

    @staticmethod
    def forward(ctx, x: Tensor, V: Tensor, geometry: Geometry) -> Tensor:  # type: ignore[no-untyped-def, override]
        c_in, c_out, scale, pixels = x.shape[1], geometry.c_out, scale_of(V), _pixels(x)
        taps = (V.shape[2], V.shape[3])
        fourier = _fourier(geometry.windows.source, taps, dense=geometry.dense, dtype=V.dtype)
        kept, spectra = [], fourier.analysed(pixels, len(V))
        for kind, u in zip(fourier.kinds, spectra, strict=True):
            V_f = kind.spectrum(V, scale)
            L = factor_for_solving(partial(_gram, V_f, geometry.ridge))
            p = _solution(L, _rows_conj(u[..., :c_in], V_f[:, :, :c_in]))
            r = _subtract_(u, p, V_f)
            kept += [V_f, L, p, r]
        ctx.save_for_backward(scale, *kept)
        ctx.geometry, ctx.c_in, ctx.shape, ctx.fourier = geometry, c_in, V.shape, fourier
        return _images(fourier.reflected(embed_channels(pixels, c_out, dim=2), spectra), geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:  # type: ignore[no-untyped-def, override]
        scale, *kept = ctx.saved_tensors
        geometry, fourier, pixels, gV = ctx.geometry, ctx.fourier, _pixels(grads[0]), None
        spectra, c_out = fourier.analysed(pixels, ctx.shape[0]), geometry.c_out
        slope = ridge_slope(geometry.ridge, ctx.shape[1], pixels.dtype)
        for kind, h, V_f, L, p, r in zip(fourier.kinds, spectra, *(kept[i::4] for i in range(4)), strict=True):
            q = _solution(L, _rows_conj(h[..., :c_out], V_f[:, :, :c_out]))
            left = _subtract_(h, q, V_f)
            if not ctx.needs_input_grad[1]:
                continue
            gradient = _add_outer_(_add_outer_(torch.empty_like(V_f), left, p, beta=0), r, q)
            if slope > torch.finfo(pixels.dtype).eps:  # below that the ridge's own gradient is lost in rounding
                gradient.addcmul_((p * q).sum((0, 2, 3))[:, None, None], V_f, value=-2 * slope)
            taps = kind.taps(gradient, -2 / scale)
            gV = taps if gV is None else gV.add_(taps)
        gx = _images(fourier.reflected(embed_channels(pixels, ctx.c_in, dim=2), spectra), geometry)
        return gx, None if gV is None else gV.view(ctx.shape), None


def _gram(V: Parts, ridge: float) -> Inexact[Tensor, "f n n"]:
    """Return V*V + e I, contiguous in columns."""
    re, *im = V
    S = torch.bmm(re.mT, re)
    if im:
        across = torch.bmm(re.mT, *im)
        S = torch.complex(S.baddbmm_(im[0].mT, *im), across.mT - across)
    add_ridge(S, ridge)
    return S.mT


def _rows_conj(rows: Parts, V: Parts) -> Parts:
    """Return rows conj(V), which are V*u for the u that the rows are."""
    if len(rows) == 1:
        return torch.bmm(rows[0], V[0])[None]
    (a, b), (re, im) = rows, V
    y = rows.new_empty(2, len(a), a.shape[1], re.shape[2])
    torch.baddbmm(torch.bmm(a, re, out=y[0]), b, im, out=y[0])
    torch.baddbmm(torch.bmm(b, re, out=y[1]), a, im, alpha=-1, out=y[1])
    return y


def _subtract_(rows: Parts, p: Parts, V: Parts) -> Parts:
    """Subtract V p from the vectors that are rows, in place."""
    for part, out in enumerate(rows):
        out.baddbmm_(p[part], V[0].mT, alpha=-1)
        if len(rows) == 2:
            out.baddbmm_(p[1 - part], V[1].mT, alpha=1 if part == 0 else -1)
    return rows


def _add_outer_(out: Parts, rows: Parts, p: Parts, *, beta: int = 1) -> Parts:
    """Add the sum of u p* over the batch to `beta` times what is there."""
    for part, total in enumerate(out):
        total.baddbmm_(rows[part].mT, p[0], beta=beta)
        if len(rows) == 2:
            total.baddbmm_(rows[1 - part].mT, p[1], alpha=1 if part == 0 else -1)
    return out


def _solution(L: Inexact[Tensor, "f n n"], rows: Parts) -> Parts:
    """Return S^-1 z for the vectors z that are rows."""
    if len(rows) == 1:
        return solved(L, rows[0])[None]
    return torch.view_as_real(solved(L, torch.complex(*rows))).movedim(-1, 0).contiguous()


@memoized(64)
def _fourier(window: Window, taps: tuple[int, int], *, dense: bool, dtype: torch.dtype) -> _Fourier:
    place = torch.device("cpu")
    D = real_dft(window, dense=dense, dtype=dtype, device=place)
    basis = kernel_basis(window.grid, taps, dense=dense, dtype=dtype, device=place).unflatten(0, (2, -1))
    alone = dense & (2 * frequencies(window.grid, dense=dense) % torch.tensor(window.grid) == 0).all(1)
    if isinstance(D, DenseDFT):
        rows = D.matrix.unflatten(0, (-1, 2))
        D = DenseDFT(torch.cat((rows[~alone].flatten(0, 1), rows[alone, 0])))
    kinds = (_Kind(2, basis[:, ~alone].flatten(0, 1)), _Kind(1, basis[0, alone]))
    return _Fourier(D, tuple(kind for kind in kinds if len(kind.basis)))


def _pixels(x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b pixels c"]:
    return pixels_first(x).permute(0, 2, 3, 1).flatten(1, 2)


def _images(y: Float[Tensor, "b pixels c"], geometry: Geometry) -> Float[Tensor, "b c h w"]:
    return y.unflatten(1, geometry.windows.target.size).permute(0, 3, 1, 2)
