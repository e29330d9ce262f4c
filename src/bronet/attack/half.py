"""The network as an attack's search sees it on a GPU: activations and products in half precision, which is fastest.

Float16 has the eleven significant bits of TF32, so the search sees as well with it; what it lacks is range. Activations
of a Lipschitz network stay small. Gradients may vanish, so that of every image is brought to one size on its way
through the network, which is linear in it, and back to its own at the pixels.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# The largest entry of an image's gradient at the logits: far from the largest half (65504), and from the smallest.
_SIZE = 256.0


class _Factors:
    """What the gradient of each image was multiplied by, in the backward pass that is under way."""

    value: Tensor


class _AtLogits(torch.autograd.Function):
    """The identity; its backward pass brings the gradient of each image to size."""

    @staticmethod
    def forward(ctx, logits: Tensor, factors: _Factors) -> Tensor:  # type: ignore[no-untyped-def, override]
        ctx.factors = factors
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def, override]
        largest = grads[0].abs().amax(dim=1).clamp_min(torch.finfo(grads[0].dtype).tiny)
        ctx.factors.value = largest / _SIZE
        return grads[0] / ctx.factors.value[:, None], None


class _AtPixels(torch.autograd.Function):
    """The identity; its backward pass returns gradients to their own size."""

    @staticmethod
    def forward(ctx, pixels: Tensor, factors: _Factors) -> Tensor:  # type: ignore[no-untyped-def, override]
        ctx.factors = factors
        return pixels.view_as(pixels)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def, override]
        return grads[0] * ctx.factors.value.view(-1, *[1] * (grads[0].ndim - 1)), None


def in_half_precision(model: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the model from pixels to logits, in half precision on a GPU; on a CPU, which gains nothing, as it is.

    Images must not influence each other's logits, as in evaluation mode. Logits have the dtype of the pixels.
    """

    def searched(pixels: Tensor) -> Tensor:
        factors = _Factors()
        device = pixels.device.type
        with torch.autocast(device, dtype=torch.float16, enabled=device == "cuda", cache_enabled=False):
            logits = model(_AtPixels.apply(pixels, factors))
        scaled: Tensor = _AtLogits.apply(logits.to(pixels.dtype), factors)
        return scaled

    return searched
