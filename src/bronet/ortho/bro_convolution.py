"""The BRO convolution in its real low-rank form: what runs (`textbook_bro_convolution` is the readable form).

    y = E x - 2 D' A[:c_out] S^-1 A[:c_in]' D x,    A_f = [[Re V_f, -Im V_f], [Im V_f, Re V_f]],    S_f = A_f'A_f + e I

with x stored as (pixel, channel, batch). D (`real_dft`) holds padding, cropping and the Fourier transform; every
other product is a batched real matrix product. No W is formed, nothing is transposed in memory, and no complex number
occurs. Equal to the textbook form up to rounding times the condition of S.

The backward pass is written by hand (docs/speed.md derives it): with u = D x and p = S^-1 A'u, and for a gradient g of
y with h = D g and q = S^-1 A'h, the gradients are -(E'g - 2 D'(h - A q)) for x, because D'h = E'g, and
-2 ((h - A q) p' + (u - A p) q') for A.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from bronet.ortho.products import is_traced
from bronet.ortho.real_dft import RealDFT, Window, frequencies, real_dft
from bronet.ortho.reflector import embed_channels
from bronet.ortho.spd import add_ridge, factored, ridge_slope, scale_of, symmetric_inverse, unit_scaled, with_ridge
from bronet.ortho.spectrum import fill_channels, rows_of_channels, spectrum_blocks, spectrum_gradient, spectrum_gram

# Channels below which a copy of all images at once beats one transposed matrix after the other, on one thread, too.
_FEW_CHANNELS = 16


@dataclass(frozen=True)
class Windows:
    """Where the input and the output of a padded convolution lie on its circular grid."""

    source: Window
    target: Window

    @classmethod
    def of(cls, size: tuple[int, int], padding: int, *, keep_padding: bool = False) -> "Windows":
        """Return the windows of an image padded by `padding` zeros on each side, cropped afterwards or not."""
        grid = (size[0] + 2 * padding, size[1] + 2 * padding)
        source = Window(grid, size, (padding, padding))
        return cls(source, Window(grid, grid) if keep_padding else source)


@dataclass(frozen=True)
class Geometry:
    """All of a convolution but its numbers."""

    windows: Windows
    c_out: int
    ridge: float
    dense: bool

    def bases(self, x: Tensor) -> tuple[RealDFT, RealDFT]:
        """Return D of the input and of the output window, like x in dtype and device."""
        source = real_dft(self.windows.source, dense=self.dense, dtype=x.dtype, device=x.device)
        return source, real_dft(self.windows.target, dense=self.dense, dtype=x.dtype, device=x.device)


def reflector_factor(
    V: Float[Tensor, "c n kh kw"], geometry: Geometry, *, dtype: torch.dtype | None = None
) -> Float[Tensor, "f two_c two_n"]:
    """Return Q = A L^-T with L L' = A'A + e I, so that the reflector is I - 2 Q Q': what evaluation keeps."""
    grid, V = geometry.windows.source.grid, unit_scaled(V)
    A = spectrum_blocks(V, grid, dense=geometry.dense)
    S = spectrum_gram(V, grid, dense=geometry.dense)
    add_ridge(S, geometry.ridge)
    L, _ = factored(S)
    Q = torch.linalg.solve_triangular(L, A.mT, upper=False).mT
    return Q.to(dtype or V.dtype)


@torch.no_grad()
def reflector_inverses(
    kernels: Sequence[Float[Tensor, "c n kh kw"]], geometry: Geometry, *, dtype: torch.dtype | None = None
) -> list[Float[Tensor, "f two_n two_n"]]:
    """Return (A'A + e I)^-1 of several kernels of one shape, in one batched inversion, rounded once to `dtype`."""
    grid, dense = geometry.windows.source.grid, geometry.dense
    f, n = len(frequencies(grid, dense=dense)), kernels[0].shape[1]
    S = kernels[0].new_empty(len(kernels), f, 2 * n, 2 * n)
    for V, out in zip(kernels, S, strict=True):
        spectrum_gram(unit_scaled(V), grid, dense=dense, out=out)
    add_ridge(S, geometry.ridge)
    return list(symmetric_inverse(S).to(dtype or S.dtype))


def apply_factor(
    x: Float[Tensor, "pixels c_in b"], Q: Float[Tensor, "f two_c two_n"], geometry: Geometry
) -> Float[Tensor, "pixels_out c_out b"]:
    """Return the reflection for a given factor, as D'(u - 2 Q Q'u) with u = D x: E x = D'u, so no residual is added."""
    source, target = geometry.bases(x)
    u = source.analysis(x)
    p = rows_of_channels(Q, x.shape[1]).mT @ u
    if geometry.c_out != x.shape[1]:
        u = rows_of_channels(fill_channels(u, Q.shape[1] // 2), geometry.c_out)
    return target.synthesis(u.baddbmm_(rows_of_channels(Q, geometry.c_out), p, alpha=-2))


class _Reflection(torch.autograd.Function):
    """x, V -> y with the backward pass of the module's docstring. It keeps x, A, S^-1 and p; u and v are recomputed."""

    @staticmethod
    def forward(  # type: ignore[no-untyped-def, override]
        ctx, x: Tensor, V: Tensor, inverse: Tensor | None, geometry: Geometry
    ) -> Tensor:
        if inverse is None:
            (inverse,) = reflector_inverses([V], geometry)
        y, *kept = _reflected(x, V, inverse, geometry)
        ctx.save_for_backward(*kept)
        ctx.taps, ctx.precision = (V.shape[2], V.shape[3]), V.dtype
        ctx.geometry = geometry
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:  # type: ignore[no-untyped-def, override]
        x, A, inverse, p, scale = ctx.saved_tensors
        geometry: Geometry = ctx.geometry
        g = pixels_of(grads[0])
        source, target = geometry.bases(x)
        c, c_in = A.shape[1] // 2, x.shape[1]
        h = target.analysis(g)
        q = inverse @ (rows_of_channels(A, geometry.c_out).mT @ h)
        left = fill_channels(h, c).baddbmm_(A, q, alpha=-1)
        cropped = _moved(g, c_in, geometry.windows.target, geometry.windows.source)
        gx = source.reflected(cropped, rows_of_channels(left, c_in), -1)
        gx = images_of(gx, geometry.windows.source)
        if not ctx.needs_input_grad[1]:
            return gx, None, None, None
        right = fill_channels(source.analysis(x), c).baddbmm_(A, p, alpha=-1)
        gA = (left @ p.mT).baddbmm_(right, q.mT)
        slope = ridge_slope(geometry.ridge, A.shape[-1], ctx.precision)
        if slope > torch.finfo(A.dtype).eps:  # below that the ridge's own gradient is lost in rounding
            gA = gA - 2 * slope * (p * q).sum((1, 2), keepdim=True) * A
        grid = geometry.windows.source.grid
        gV = spectrum_gradient(gA, ctx.taps, grid, dense=geometry.dense, dtype=ctx.precision)
        return gx, gV * (-2 / scale), None, None


def _reflected(x: Tensor, V: Tensor, inverse: Tensor, geometry: Geometry) -> tuple[Tensor, ...]:
    """Return y, and x as pixels, A, S^-1, p and the scale of V, which its gradient needs."""
    inverse, scale = inverse.to(x.dtype), scale_of(V)
    A = spectrum_blocks(V, geometry.windows.source.grid, dense=geometry.dense, dtype=x.dtype, scale=scale)
    x = pixels_of(x)
    source, target = geometry.bases(x)
    p = inverse @ (rows_of_channels(A, x.shape[1]).mT @ source.analysis(x))
    v = rows_of_channels(A, geometry.c_out) @ p
    y = images_of(target.reflected(embed_image(x, geometry), v, 1), geometry.windows.target)
    return y, x, A, inverse, p, scale


def reflect_images(
    x: Float[Tensor, "b c_in h w"],
    V: Float[Tensor, "c n kh kw"],
    geometry: Geometry,
    *,
    inverse: Float[Tensor, "f two_n two_n"] | None = None,
) -> Float[Tensor, "b c_out h_out w_out"]:
    """Return the BRO convolution of x: products in x's precision, factorisations in V's. Differentiable once, by
    torch.func any number of times.

    `inverse`, if given, is (A'A + e I)^-1 of this V; the gradient takes its dependence on V into account. The result's
    memory order is (h, w, c, b), as the next layer wants it.
    """
    if is_traced():
        S = spectrum_gram(unit_scaled(V), geometry.windows.source.grid, dense=geometry.dense)
        return _reflected(x, V, symmetric_inverse(with_ridge(S, geometry.ridge)), geometry)[0]
    y: Tensor = _Reflection.apply(x, V, inverse, geometry)
    return y


def pixels_of(x: Float[Tensor, "b c h w"]) -> Float[Tensor, "pixels c b"]:
    """Return images as (pixel, channel, batch): a view if they already lie so in memory."""
    return contiguous_batch_last(x).flatten(0, 1)


def images_of(y: Float[Tensor, "pixels c b"], window: Window) -> Float[Tensor, "b c h w"]:
    """Return (pixel, channel, batch) as images (b, c, h, w) of a window: a view."""
    return y.view(*window.size, *y.shape[1:]).permute(3, 2, 0, 1)


def embed_image(x: Float[Tensor, "pixels c_in b"], geometry: Geometry) -> Float[Tensor, "pixels_out c_out b"]:
    """Return E x: channels cut or zero-filled, pixels set into the output window."""
    return _moved(x, geometry.c_out, geometry.windows.source, geometry.windows.target)


def _moved(x: Float[Tensor, "from c b"], channels: int, source: Window, target: Window) -> Float[Tensor, "to k b"]:
    """Return x with so many channels, its pixels moved from one window to another: cut off, or filled with zeros."""
    x = embed_channels(x, channels, dim=1)
    if source == target:
        return x
    top, left = (a - b for a, b in zip(source.corner, target.corner, strict=True))
    bottom, right = target.size[0] - source.size[0] - top, target.size[1] - source.size[1] - left
    image = x.reshape(*source.size, *x.shape[1:])
    return torch.nn.functional.pad(image, (0, 0, 0, 0, left, right, top, bottom)).flatten(0, 1)


def pixels_first(x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
    """Return images that lie in memory as (b, h, w, c), in which a CPU convolves; the shape stays.

    On a CPU torch moves the entries of a transposed matrix ten times as fast as those of other permutations, but in one
    thread; images in torch's own order are moved faster as they are by two, and by one where channels are few. While
    a tool of torch follows, the order stays: torch.func cannot ask for one.
    """
    if is_traced():
        return x
    pixels, by_batch = x.permute(0, 2, 3, 1), x.permute(2, 3, 1, 0)
    if pixels.is_contiguous() or not _moves_matrices(x):
        return x.contiguous(memory_format=torch.channels_last)
    if x.is_contiguous() and (x.shape[1] < _FEW_CHANNELS or torch.get_num_threads() > 1):
        return x.contiguous(memory_format=torch.channels_last)
    if by_batch.is_contiguous():
        return by_batch.reshape(-1, len(x)).mT.contiguous().view(pixels.shape).permute(0, 3, 1, 2)
    if x.requires_grad and torch.is_grad_enabled():
        return x.contiguous(memory_format=torch.channels_last)
    moved = x.new_empty(pixels.shape)
    for image, into in zip(x.flatten(2), moved.flatten(1, 2), strict=True):
        into.copy_(image.mT)
    return moved.permute(0, 3, 1, 2)


def contiguous_batch_last(x: Float[Tensor, "b c h w"]) -> Float[Tensor, "h w c b"]:
    """Return images permuted and contiguous as (h, w, c, b): a view if they already lie so in memory."""
    by_batch = x.permute(2, 3, 1, 0)
    if by_batch.is_contiguous() or not _moves_matrices(x):
        return by_batch.contiguous()
    return pixels_first(x).permute(0, 2, 3, 1).reshape(len(x), -1).mT.contiguous().view(by_batch.shape)


def _moves_matrices(x: Tensor) -> bool:
    return x.device.type == "cpu" and not (torch.compiler.is_compiling() or is_traced())
