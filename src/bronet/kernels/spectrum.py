"""From kernel taps to the blocks A_f and back (see `bronet.ortho.real_dft`) with one write, or one read, of A.

A is by far the largest tensor of a layer's parameter transform. The torch version writes the spectrum and then copies
it into the four blocks; here each tile of frequencies and entries is one small product, computed where it is written.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

_ENTRIES = 128  # of the c x n matrix, per program
_FREQUENCIES = 16  # per product, which takes no fewer
_PROGRAMS = 1024  # enough to fill a large GPU several times over


@triton.jit
def _blocks_kernel(  # type: ignore[no-untyped-def]
    taps_of, scale, basis, A, cn, c, n, f, per_program,
    T: tl.constexpr, T_PADDED: tl.constexpr, FREQ: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tap = tl.arange(0, T_PADDED)
    inside = (index < cn)[None, :]
    values = tl.load(taps_of + tap[:, None] * cn + index[None, :], mask=inside & (tap < T)[:, None], other=0.0)
    values = values / tl.load(scale)
    corner = (index // n * 2 * n + index % n)[None, :]
    kind = A.dtype.element_ty
    first = tl.program_id(1) * per_program
    for start in range(first, tl.minimum(first + per_program, f), FREQ):
        frequency = start + tl.arange(0, FREQ)
        known = (frequency < f)[:, None]
        place = basis + frequency[:, None] * T + tap[None, :]
        cos = tl.load(place, mask=known & (tap < T)[None, :], other=0.0)
        minus_sin = tl.load(place + f * T, mask=known & (tap < T)[None, :], other=0.0)
        re = tl.dot(cos, values, input_precision="ieee")
        im = tl.dot(minus_sin, values, input_precision="ieee")
        target = A + frequency[:, None].to(tl.int64) * 4 * cn + corner
        tl.store(target, re.to(kind), mask=known & inside)
        tl.store(target + n, (-im).to(kind), mask=known & inside)
        tl.store(target + 2 * cn, im.to(kind), mask=known & inside)
        tl.store(target + 2 * cn + n, re.to(kind), mask=known & inside)


@triton.jit
def _gradient_kernel(  # type: ignore[no-untyped-def]
    gA, basis, out, cn, c, n, f, per_program,
    T: tl.constexpr, T_PADDED: tl.constexpr, FREQ: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tap = tl.arange(0, T_PADDED)
    inside = (index < cn)[None, :]
    corner = (index // n * 2 * n + index % n)[None, :]
    total = tl.zeros([T_PADDED, BLOCK], dtype=tl.float32)
    first = tl.program_id(1) * per_program
    for start in range(first, tl.minimum(first + per_program, f), FREQ):
        frequency = start + tl.arange(0, FREQ)
        known = (frequency < f)[:, None] & inside
        source = gA + frequency[:, None].to(tl.int64) * 4 * cn + corner
        re = tl.load(source, mask=known, other=0.0).to(tl.float32)
        re += tl.load(source + 2 * cn + n, mask=known, other=0.0).to(tl.float32)
        im = tl.load(source + 2 * cn, mask=known, other=0.0).to(tl.float32)
        im -= tl.load(source + n, mask=known, other=0.0).to(tl.float32)
        place = basis + frequency[None, :] * T + tap[:, None]
        in_basis = (frequency < f)[None, :] & (tap < T)[:, None]
        total = tl.dot(tl.load(place, mask=in_basis, other=0.0), re, total, input_precision="ieee")
        total = tl.dot(tl.load(place + f * T, mask=in_basis, other=0.0), im, total, input_precision="ieee")
    target = out + (tl.program_id(1) * T + tap)[:, None].to(tl.int64) * cn + index[None, :]
    tl.store(target, total, mask=inside & (tap < T)[:, None])


def blocks(
    taps: Float[Tensor, "taps c n"],
    scale: Float[Tensor, ""],
    basis: Float[Tensor, "two_f taps"],
    out: Float[Tensor, "f two_c two_n"],
) -> None:
    """Write A_f of taps / scale for every frequency; float32 arithmetic, rounded once to the dtype of `out`."""
    count, c, n = taps.shape
    f = basis.shape[0] // 2
    tiles, per_program = _work(c * n, f, 4 * _PROGRAMS)
    grid = (tiles, triton.cdiv(f, per_program))
    sizes = (c * n, c, n, f, per_program)
    _blocks_kernel[grid](
        taps.contiguous(), scale, basis, out, *sizes,
        T=count, T_PADDED=_padded(count), FREQ=_FREQUENCIES, BLOCK=_ENTRIES,
    )  # fmt: skip


def gradient(gA: Float[Tensor, "f two_c two_n"], basis: Float[Tensor, "two_f taps"]) -> Float[Tensor, "taps c n"]:
    """Return the gradient of the taps, summed over frequencies in float32 in a fixed order."""
    f, c, n = gA.shape[0], gA.shape[1] // 2, gA.shape[2] // 2
    count = basis.shape[1]
    tiles, per_program = _work(c * n, f, _PROGRAMS)
    splits = triton.cdiv(f, per_program)
    out = torch.empty(splits, count, c, n, device=gA.device, dtype=torch.float32)
    sizes = (c * n, c, n, f, per_program)
    _gradient_kernel[(tiles, splits)](
        gA.contiguous(), basis, out, *sizes,
        T=count, T_PADDED=_padded(count), FREQ=_FREQUENCIES, BLOCK=_ENTRIES,
    )  # fmt: skip
    return out.sum(0) if splits > 1 else out[0]


def _work(entries: int, f: int, programs: int) -> tuple[int, int]:
    """Return the number of tiles of entries, and how many frequencies one program takes."""
    tiles = triton.cdiv(entries, _ENTRIES)
    per_program = triton.cdiv(f * tiles, max(tiles, programs))
    return tiles, triton.cdiv(per_program, _FREQUENCIES) * _FREQUENCIES


def _padded(taps: int) -> int:
    return max(_FREQUENCIES, triton.next_power_of_2(taps))
