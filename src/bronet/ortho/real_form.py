"""The BRO convolution in its real low-rank form: what runs.

    y = E x - 2 D' A[:c_out] S^-1 A[:c_in]' D x,    A_f = [[Re V_f, -Im V_f], [Im V_f, Re V_f]],    S_f = A_f'A_f + e I

with x stored as (pixel, channel, batch). D (`real_dft`) holds padding, cropping and the Fourier transform; every
other product is a batched real matrix product. No W is formed, nothing is transposed in memory, and no complex number
occurs.
Equal to the textbook form up to rounding times the condition of S.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bronet.ortho.real_dft import RealDFT, Window, is_dense, kernel_basis, real_dft
from bronet.ortho.reflector import embed_channels
from bronet.ortho.spd import ridge_of, symmetric_inverse, unit_scaled


@dataclass(frozen=True)
class ReflectorFactors:
    """What the parameters of one BRO convolution become on one grid: A and S^-1 for every frequency."""

    A: Float[Tensor, "f two_c two_n"]
    inverse: Float[Tensor, "f two_n two_n"]


def spectrum_blocks(
    V: Float[Tensor, "c n kh kw"], grid: tuple[int, int], *, dense: bool
) -> Float[Tensor, "f two_c two_n"]:
    """Return A_f = [[Re V_f, -Im V_f], [Im V_f, Re V_f]] for every frequency of the grid."""
    c, n, kh, kw = V.shape
    basis = kernel_basis(grid, (kh, kw), dense=dense, dtype=V.dtype, device=V.device)
    taps = V.permute(2, 3, 0, 1).reshape(kh * kw, c * n)
    re, im = (basis @ taps).view(2, -1, c, n).unbind(0)
    return torch.cat((torch.cat((re, -im), dim=-1), torch.cat((im, re), dim=-1)), dim=-2)


def gram(A: Float[Tensor, "f two_c two_n"]) -> Float[Tensor, "f two_n two_n"]:
    """Return A'A from its first block column: the rest follows from the block structure."""
    n = A.shape[-1] // 2
    re, im = (A.mT @ A[..., :n]).split(n, dim=-2)
    return torch.cat((torch.cat((re, im.mT), dim=-1), torch.cat((im, re), dim=-1)), dim=-2)


def with_ridge(S: Float[Tensor, "*batch n n"], relative: float) -> Float[Tensor, "*batch n n"]:
    """Return S + e I."""
    e = ridge_of(S.diagonal(dim1=-2, dim2=-1), relative, S.dtype)
    return S + e[..., None, None] * torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)


def reflector_factors(
    V: Float[Tensor, "c n kh kw"], grid: tuple[int, int], *, dense: bool, ridge: float
) -> ReflectorFactors:
    """Return A and (A'A + e I)^-1 on the grid, in V's precision."""
    A = spectrum_blocks(unit_scaled(V), grid, dense=dense)
    return ReflectorFactors(A, symmetric_inverse(with_ridge(gram(A), ridge)))


def rows_of_channels(A: Float[Tensor, "f two_c two_n"], channels: int) -> Float[Tensor, "f two_channels two_n"]:
    """Return A built from the first `channels` rows of V only."""
    c = A.shape[-2] // 2
    if channels == c:
        return A
    return A.unflatten(-2, (2, c))[:, :, :channels].flatten(1, 2)


@dataclass(frozen=True)
class Windows:
    """Where the input and the output of a padded convolution lie on its circular grid."""

    source: Window
    target: Window

    @classmethod
    def of(cls, size: tuple[int, int], padding: int, *, keep_padding: bool) -> "Windows":
        """Return the windows of an image padded by `padding` zeros on each side, cropped afterwards or not."""
        grid = (size[0] + 2 * padding, size[1] + 2 * padding)
        source = Window(grid, size, (padding, padding))
        return cls(source, Window(grid, grid) if keep_padding else source)


def apply_reflector(
    x: Float[Tensor, "pixels c_in b"],
    factors: ReflectorFactors,
    source: RealDFT,
    target: RealDFT,
    residual: Float[Tensor, "pixels_out c_out b"],
) -> Float[Tensor, "pixels_out c_out b"]:
    """Return residual - 2 D' A S^-1 A' D x; the residual is x embedded in the output's channels and pixels."""
    c_in, c_out = x.shape[1], residual.shape[1]
    u = rows_of_channels(factors.A, c_in).mT @ source.analysis(x)
    v = rows_of_channels(factors.A, c_out) @ (factors.inverse @ u)
    return residual - 2 * target.synthesis(v)


def embed_image(x: Float[Tensor, "pixels c_in b"], c_out: int, windows: Windows) -> Float[Tensor, "pixels_out c_out b"]:
    """Return E x: channels cut or zero-filled, pixels set into the output window."""
    x = embed_channels(x, c_out, dim=1)
    if windows.source == windows.target:
        return x
    (top, left), (h, w), (H, W) = windows.source.corner, windows.source.size, windows.target.size
    image = x.view(h, w, *x.shape[1:])
    return torch.nn.functional.pad(image, (0, 0, 0, 0, left, W - w - left, top, H - h - top)).flatten(0, 1)


def bro_convolution(
    x: Float[Tensor, "b c_in h w"],
    V: Float[Tensor, "c n kh kw"],
    *,
    c_out: int,
    padding: int,
    keep_padding: bool,
    ridge: float,
) -> Float[Tensor, "b c_out h_out w_out"]:
    """Return the BRO convolution of x in one call; layers keep the factors instead of calling this."""
    windows = Windows.of((x.shape[-2], x.shape[-1]), padding, keep_padding=keep_padding)
    dense = is_dense(windows.source.grid, x.device)
    factors = reflector_factors(V, windows.source.grid, dense=dense, ridge=ridge)
    return convolve(x, factors, windows, c_out=c_out, dense=dense)


def convolve(
    x: Float[Tensor, "b c_in h w"], factors: ReflectorFactors, windows: Windows, *, c_out: int, dense: bool
) -> Float[Tensor, "b c_out h_out w_out"]:
    """Return the convolution for given factors; its memory order is (h, w, c, b), as the next layer wants it."""
    b, c_in = x.shape[:2]
    source = real_dft(windows.source, dense=dense, dtype=factors.A.dtype, device=x.device)
    target = real_dft(windows.target, dense=dense, dtype=factors.A.dtype, device=x.device)
    pixels = x.permute(2, 3, 1, 0).reshape(-1, c_in, b)
    y = apply_reflector(pixels, factors, source, target, embed_image(pixels, c_out, windows))
    return y.view(*windows.target.size, c_out, b).permute(3, 2, 0, 1)
