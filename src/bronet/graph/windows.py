"""Rules of pools and changes of size, each a product along both axes, or maxima over windows."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from bronet.graph import maps
from bronet.graph.operands import Input, NoRuleError, Output, pair_of
from bronet.proof.proved_map import ProvedMap


def avg_pool2d(
    out: Output,
    input: Input,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> ProvedMap:
    if divisor_override is not None:
        raise NoRuleError("only means over whole windows are bounded")
    sizes, steps, sides = pair_of(kernel_size), pair_of(kernel_size if stride is None else stride), pair_of(padding)
    means = [
        F.avg_pool1d(torch.eye(n, dtype=torch.float64)[:, None], k, s, p, ceil_mode, count_include_pad)[:, 0].mT
        for n, k, s, p in zip(input.shape[-2:], sizes, steps, sides, strict=True)
    ]
    return maps.along_axes(means[0], means[1], input.shape)


def adaptive_avg_pool2d(out: Output, input: Input, output_size: object) -> ProvedMap:
    sizes = zip(input.shape[-2:], out.shape[-2:], strict=True)
    means = [F.adaptive_avg_pool1d(torch.eye(n, dtype=torch.float64)[:, None], m)[:, 0].mT for n, m in sizes]
    return maps.along_axes(means[0], means[1], input.shape)


def max_pool2d(
    out: Output,
    input: Input,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> ProvedMap:
    sizes, steps = pair_of(kernel_size), pair_of(kernel_size if stride is None else stride)
    sides, gaps = pair_of(padding), pair_of(dilation)
    overlaps = 1
    for n, windows, k, s, p, d in zip(input.shape[-2:], out.shape[-2:], sizes, steps, sides, gaps, strict=True):
        seen = torch.arange(windows)[:, None] * s - p + torch.arange(k)[None] * d
        overlaps *= max(1, int(seen[(seen >= 0) & (seen < n)].bincount().max()))
    apply = lambda x: F.max_pool2d(x, sizes, steps, sides, gaps, ceil_mode)  # noqa: E731
    return maps.windows_maximum(apply, input.shape, out.shape, overlaps)


def adaptive_max_pool2d(out: Output, input: Input, output_size: object, return_indices: bool = False) -> ProvedMap:
    sizes, overlaps = (out.shape[-2], out.shape[-1]), 1
    for n, m in zip(input.shape[-2:], sizes, strict=True):
        spans = [range(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]
        overlaps *= max(sum(position in span for span in spans) for position in range(n))
    return maps.windows_maximum(lambda x: F.adaptive_max_pool2d(x, sizes), input.shape, out.shape, overlaps)


def interpolate(
    out: Output,
    input: Input,
    size: object = None,
    scale_factor: object = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> ProvedMap:
    whole = isinstance(scale_factor, (int, float, type(None))) and float(scale_factor or 1).is_integer()
    if mode not in ("nearest", "bilinear") or len(input.shape) != 3 or antialias or not whole:
        raise NoRuleError("only sizes and whole factors, to the nearest or bilinear, are bounded")
    kind = {"nearest": "nearest", "bilinear": "linear"}[mode]
    spread = [
        F.interpolate(torch.eye(n, dtype=torch.float64)[:, None], m, mode=kind, align_corners=align_corners)[:, 0].mT
        for n, m in zip(input.shape[-2:], out.shape[-2:], strict=True)
    ]
    return maps.along_axes(spread[0], spread[1], input.shape)
