"""From kernel taps to the blocks A_f and back (see `bronet.ortho.spectrum`): one write, or one read, of A.

A is by far the largest tensor of a layer's parameter transform. The torch twin writes the spectrum, then copies it into
the four blocks; here each tap is loaded once, and each block entry is computed where it is written.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

_BLOCK = 128
_PROGRAMS = 1024  # enough to fill a large GPU several times over


@triton.jit
def _blocks_kernel(  # type: ignore[no-untyped-def]
    V, scale, basis, A, cn, c, n, f, per_program, T: tl.constexpr, T_PADDED: tl.constexpr, BLOCK: tl.constexpr
):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < cn
    row, column = index // n, index % n
    taps = tl.arange(0, T_PADDED)
    values = tl.load(V + index[:, None] * T + taps[None, :], mask=inside[:, None] & (taps < T)[None, :], other=0.0)
    values = values / tl.load(scale)
    first = tl.program_id(1) * per_program
    for frequency in range(first, tl.minimum(first + per_program, f)):
        cos = tl.load(basis + frequency * T + taps, mask=taps < T, other=0.0)
        minus_sin = tl.load(basis + (f + frequency) * T + taps, mask=taps < T, other=0.0)
        re = tl.sum(values * cos[None, :], axis=1)
        im = tl.sum(values * minus_sin[None, :], axis=1)
        corner = A + (frequency * 2 * c + row).to(tl.int64) * 2 * n + column
        kind = A.dtype.element_ty
        tl.store(corner, re.to(kind), mask=inside)
        tl.store(corner + n, (-im).to(kind), mask=inside)
        tl.store(corner + c * 2 * n, im.to(kind), mask=inside)
        tl.store(corner + c * 2 * n + n, re.to(kind), mask=inside)


@triton.jit
def _gradient_kernel(  # type: ignore[no-untyped-def]
    gA, basis, out, cn, c, n, f, per_program, T: tl.constexpr, T_PADDED: tl.constexpr, BLOCK: tl.constexpr
):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < cn
    row, column = index // n, index % n
    taps = tl.arange(0, T_PADDED)
    total = tl.zeros([BLOCK, T_PADDED], dtype=tl.float32)
    first = tl.program_id(1) * per_program
    for frequency in range(first, tl.minimum(first + per_program, f)):
        corner = gA + (frequency * 2 * c + row).to(tl.int64) * 2 * n + column
        re = tl.load(corner, mask=inside, other=0.0).to(tl.float32)
        re += tl.load(corner + c * 2 * n + n, mask=inside, other=0.0).to(tl.float32)
        im = tl.load(corner + c * 2 * n, mask=inside, other=0.0).to(tl.float32)
        im -= tl.load(corner + n, mask=inside, other=0.0).to(tl.float32)
        cos = tl.load(basis + frequency * T + taps, mask=taps < T, other=0.0)
        minus_sin = tl.load(basis + (f + frequency) * T + taps, mask=taps < T, other=0.0)
        total += re[:, None] * cos[None, :] + im[:, None] * minus_sin[None, :]
    place = out + (tl.program_id(1) * cn + index)[:, None].to(tl.int64) * T + taps[None, :]
    tl.store(place, total, mask=inside[:, None] & (taps < T)[None, :])


def blocks(
    V: Float[Tensor, "c n kh kw"], scale: Float[Tensor, ""], basis: Float[Tensor, "two_f taps"], dtype: torch.dtype
) -> Float[Tensor, "f two_c two_n"]:
    """Return A_f of V / scale for every frequency; float32 arithmetic, rounded once."""
    c, n, kh, kw = V.shape
    f = basis.shape[0] // 2
    A = torch.empty(f, 2 * c, 2 * n, device=V.device, dtype=dtype)
    tiles = triton.cdiv(c * n, _BLOCK)
    per_program = triton.cdiv(f * tiles, max(tiles, 4 * _PROGRAMS))
    grid = (tiles, triton.cdiv(f, per_program))
    _blocks_kernel[grid](
        V.contiguous(),
        scale,
        basis,
        A,
        c * n,
        c,
        n,
        f,
        per_program,
        T=kh * kw,
        T_PADDED=triton.next_power_of_2(kh * kw),
        BLOCK=_BLOCK,
    )
    return A


def gradient(
    gA: Float[Tensor, "f two_c two_n"], basis: Float[Tensor, "two_f taps"], taps: tuple[int, int]
) -> Float[Tensor, "c n kh kw"]:
    """Return the gradient of the taps, summed over frequencies in float32 in a fixed order."""
    f, c, n = gA.shape[0], gA.shape[1] // 2, gA.shape[2] // 2
    tiles, count = triton.cdiv(c * n, _BLOCK), taps[0] * taps[1]
    per_program = triton.cdiv(f * tiles, max(tiles, _PROGRAMS))
    splits = triton.cdiv(f, per_program)
    out = torch.empty(splits, c, n, *taps, device=gA.device, dtype=torch.float32)
    _gradient_kernel[(tiles, splits)](
        gA.contiguous(),
        basis,
        out,
        c * n,
        c,
        n,
        f,
        per_program,
        T=count,
        T_PADDED=triton.next_power_of_2(count),
        BLOCK=_BLOCK,
    )
    return out.sum(0)
