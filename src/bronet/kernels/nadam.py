"""One NAdam update of a tensor: a single pass over parameter, gradient and both moments."""

import torch
import triton
import triton.language as tl
from jaxtyping import Float32
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _nadam_kernel(  # type: ignore[no-untyped-def]
    p, g, m, v, coefficients, count, beta1, beta2, eps, weight_decay, BLOCK: tl.constexpr
):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    of_gradient = tl.load(coefficients)
    of_momentum = tl.load(coefficients + 1)
    correction = tl.load(coefficients + 2)
    value = tl.load(p + index, mask=inside, other=0.0)
    gradient = tl.load(g + index, mask=inside, other=0.0) + weight_decay * value
    first = tl.load(m + index, mask=inside, other=0.0)
    first = beta1 * first + (1 - beta1) * gradient
    second = tl.load(v + index, mask=inside, other=0.0)
    second = beta2 * second + (1 - beta2) * gradient * gradient
    size = tl.sqrt(second / correction) + eps
    value -= (of_gradient * gradient + of_momentum * first) / size
    tl.store(p + index, value, mask=inside)
    tl.store(m + index, first, mask=inside)
    tl.store(v + index, second, mask=inside)


def update(
    p: Float32[Tensor, "..."],
    g: Float32[Tensor, "..."],
    m: Float32[Tensor, "..."],
    v: Float32[Tensor, "..."],
    coefficients: Float32[Tensor, "3"],
    *,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """Update p, m and v in place. `coefficients`: of the gradient, of the momentum, and 1 - beta2^t."""
    count = p.numel()
    grid = (triton.cdiv(count, _BLOCK),)
    _nadam_kernel[grid](p, g.contiguous(), m, v, coefficients, count, *betas, eps, weight_decay, BLOCK=_BLOCK)
    torch.autograd.graph.increment_version(p)  # the kernel writes behind autograd's back
