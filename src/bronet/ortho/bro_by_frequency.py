"""The BRO convolution as complex matrices, one frequency at a time: what a CPU trains with where n is not small.

    y = E x - 2 D' V p,    p = S^-1 z,    z = V* u,    u = D x,    S = V*V + e I

It is the real form of `bro_convolution` with complex arithmetic inside each frequency, so that S is of n x n instead of
2n x 2n; where a frequency is its own conjugate, all is real and a quarter of the work. Activations are rows, the real
parts of the batch above the imaginary ones, so that every product is a real one of a size that libraries do best.

The backward pass is that of the real form: with q = S^-1 V* h for h = D g, the gradient of x is E'g - 2 D' V q, and
that of V is -2 ((h - V q) p* + (u - V p) q*).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from bronet.ortho.bro_convolution import Geometry, pixels_first
from bronet.ortho.products import product
from bronet.ortho.real_dft import frequencies, kernel_basis, real_dft
from bronet.ortho.reflector import embed_channels
from bronet.ortho.spd import add_ridge, factored, ridge_slope, scale_of


class _Matrix(NamedTuple):
    """A complex matrix, or a real one without an imaginary part."""

    re: Float[Tensor, "m n"]
    im: Float[Tensor, "m n"] | None

    def transposed(self) -> "_Matrix":
        return _Matrix(self.re.mT, None if self.im is None else self.im.mT)

    def first(self, rows: int) -> "_Matrix":
        return _Matrix(self.re[:rows], None if self.im is None else self.im[:rows])

    def part_of(self, rows: Float[Tensor, "two_b c"]) -> Tensor:
        """Return the rows that are not zero at this matrix's frequency."""
        return rows if self.im is not None else rows[: len(rows) // 2]

    def after(self, rows: Float[Tensor, "two_b m"], *, conjugate: bool) -> Float[Tensor, "two_b n"]:
        """Return rows times this matrix, or times its conjugate."""
        y = product(rows, self.re)
        if self.im is not None:
            (re, im), turned = y.chunk(2), product(rows, self.im).chunk(2)
            re.add_(turned[1], alpha=1 if conjugate else -1)
            im.sub_(turned[0], alpha=1 if conjugate else -1)
        return y


class FrequencyReflection(torch.autograd.Function):
    """x, V -> y with the backward pass of the module's docstring; the output is cropped as the input was padded."""

    @staticmethod
    def forward(ctx, x: Tensor, V: Tensor, geometry: Geometry) -> Tensor:  # type: ignore[no-untyped-def, override]
        (c, n, *_), c_out, scale = V.shape, geometry.c_out, scale_of(V)
        spectrum = _basis(V, geometry) @ (V / scale).permute(2, 3, 0, 1).reshape(-1, c * n)
        kernels = _matrices(spectrum.view(2, -1, c, n), geometry)
        inverses = _inverses(kernels, geometry.ridge)
        pixels = _pixels(x)
        D = real_dft(geometry.windows.source, dense=geometry.dense, dtype=x.dtype, device=x.device)
        u = D.analysis(pixels)
        v, p, left_over = u.new_zeros(*u.shape[:2], c_out), u.new_empty(*u.shape[:2], n), u.new_empty(*u.shape[:2], c)
        for f, (kernel, inverse) in enumerate(zip(kernels, inverses, strict=True)):
            rows = kernel.part_of(u[f])
            moved, reflected = _reflected(rows, kernel, inverse)
            kernel.part_of(p[f]).copy_(moved)
            kernel.part_of(v[f]).copy_(reflected[:, :c_out])
            torch.sub(embed_channels(rows, c, dim=1), reflected, out=kernel.part_of(left_over[f]))
        ctx.save_for_backward(V, scale, spectrum, p, left_over, *(part for P in inverses for part in P))
        ctx.geometry, ctx.c_in = geometry, x.shape[1]
        return _images(D.reflected(embed_channels(pixels, c_out, dim=2), v, 1), geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:  # type: ignore[no-untyped-def, override]
        V, scale, spectrum, p, left_over, *parts = ctx.saved_tensors
        geometry, (c, n, *taps) = ctx.geometry, V.shape
        kernels = _matrices(spectrum.view(2, -1, c, n), geometry)
        inverses = [_Matrix(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
        pixels = _pixels(grads[0])
        D = real_dft(geometry.windows.source, dense=geometry.dense, dtype=V.dtype, device=V.device)
        h = D.analysis(pixels)
        w, gV = h.new_zeros(*h.shape[:2], ctx.c_in), torch.empty_like(spectrum).view(2, -1, c, n)
        slope = ridge_slope(geometry.ridge, n, V.dtype)
        for f, (kernel, inverse) in enumerate(zip(kernels, inverses, strict=True)):
            rows = kernel.part_of(h[f])
            q, reflected = _reflected(rows, kernel, inverse)
            kernel.part_of(w[f]).copy_(reflected[:, : ctx.c_in])
            if not ctx.needs_input_grad[1]:
                continue
            moved, other = kernel.part_of(p[f]), kernel.part_of(left_over[f])
            left = torch.cat((embed_channels(rows, c, dim=1).sub(reflected), other))
            right = torch.cat((moved, q))
            shrunk = 2 * slope * float((moved * q).sum())
            torch.sub(product(left.mT, right), kernel.re, alpha=shrunk, out=gV[0, f])
            if kernel.im is None:
                gV[1, f] = 0
            else:
                turned = torch.cat([part for re, im in _pairs(left) for part in (im, -re)])
                torch.sub(product(turned.mT, right), kernel.im, alpha=shrunk, out=gV[1, f])
        gx = _images(D.reflected(embed_channels(pixels, ctx.c_in, dim=2), w, 1), geometry)
        if not ctx.needs_input_grad[1]:
            return gx, None, None
        gradient = (_basis(V, geometry).mT @ gV.view(len(spectrum), -1)).view(*taps, c, n)
        return gx, gradient.permute(2, 3, 0, 1) * (-2 / scale), None


def _reflected(rows: Tensor, kernel: _Matrix, inverse: _Matrix) -> tuple[Tensor, Tensor]:
    """Return p and V p as rows, for rows of u with no more channels than V has."""
    z = kernel.first(rows.shape[1]).after(rows, conjugate=True)
    p = inverse.after(z, conjugate=True)
    return p, kernel.transposed().after(p, conjugate=False)


def _basis(V: Tensor, geometry: Geometry) -> Float[Tensor, "two_f taps"]:
    grid, taps = geometry.windows.source.grid, (V.shape[2], V.shape[3])
    return kernel_basis(grid, taps, dense=geometry.dense, dtype=V.dtype, device=V.device)


def _matrices(spectrum: Float[Tensor, "2 f c n"], geometry: Geometry) -> list[_Matrix]:
    """Return the kernel at each frequency; in the dense order self-conjugate ones are real, as their rows of D are."""
    (H, W), freq = geometry.windows.source.grid, frequencies(geometry.windows.source.grid, dense=geometry.dense)
    alone = geometry.dense & ((2 * freq[:, 0]) % H == 0) & ((2 * freq[:, 1]) % W == 0)
    return [_Matrix(re, None if real else im) for re, im, real in zip(*spectrum, alone.tolist(), strict=True)]


def _inverses(kernels: list[_Matrix], ridge: float) -> list[_Matrix]:
    """Return S^-1 at each frequency; the real ones in one batch, the complex ones in another."""
    grams = [_gram(kernel) for kernel in kernels]
    batches = [[S for S in grams if S.is_complex() == kind] for kind in (False, True)]
    inverted = []
    for batch in batches:
        if batch:
            S = torch.stack(batch)
            add_ridge(S, ridge)
            inverted.append(iter(factored(S)[1]))
        else:
            inverted.append(iter(()))
    chosen = [next(inverted[S.is_complex()]) for S in grams]
    return [_Matrix(P.real.contiguous(), P.imag.contiguous()) if P.is_complex() else _Matrix(P, None) for P in chosen]


def _gram(kernel: _Matrix) -> Tensor:
    re, im = kernel
    if im is None:
        return product(re.mT, re)
    across = product(re.mT, im)
    return torch.complex(product(re.mT, re) + product(im.mT, im), across - across.mT)


def _pairs(rows: Float[Tensor, "four_b c"]) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return (real, imaginary) parts of each of two batches."""
    a, b, c, d = rows.chunk(4)
    return (a, b), (c, d)


def _pixels(x: Float[Tensor, "b c h w"]) -> Float[Tensor, "pixels b c"]:
    return pixels_first(x).permute(2, 3, 0, 1).flatten(0, 1)


def _images(y: Float[Tensor, "pixels b c"], geometry: Geometry) -> Float[Tensor, "b c h w"]:
    return y.view(*geometry.windows.target.size, *y.shape[1:]).permute(2, 3, 0, 1)
