"""The network as an attack's search sees it on a GPU: activations and products in half precision, which is fastest.

Float16 has the eleven significant bits of TF32, so the search sees as well with it; what it lacks is range. Activations
of a Lipschitz network stay small. Gradients may vanish, so that of every image is brought to one size on its way
through the network, which is linear in it, and back to its own at the pixels.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bronet.attack.judge import per_image

# The largest entry of an image's gradient at the logits: far from the largest half (65504), and from the smallest.
_SIZE = 256.0


class _Gradients:
    """Hooks of one forward pass: at the logits the gradient of each image comes to size, at the pixels back."""

    factors: Tensor  # of the backward pass that is under way

    def to_size(self, gradient: Tensor) -> Tensor:
        # No factor is below the normal numbers: where those are flushed to zero, 0 / 0 would be NaN.
        least = torch.finfo(gradient.dtype).tiny * _SIZE
        self.factors = gradient.abs().amax(dim=1).clamp_min(least) / _SIZE
        return gradient / self.factors[:, None]

    def to_own_size(self, gradient: Tensor) -> Tensor:
        return gradient * per_image(self.factors, gradient)


def in_half_precision(model: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the model from pixels to logits, in half precision on a GPU; on a CPU, which gains nothing, as it is.

    Images must not influence each other's logits, as in evaluation mode. Logits have the dtype of the pixels.
    """

    def searched(pixels: Tensor) -> Tensor:
        seen, device = pixels.view_as(pixels), pixels.device.type
        with torch.autocast(device, dtype=torch.float16, enabled=device == "cuda", cache_enabled=False):
            logits = model(seen).to(pixels.dtype)
        if seen.requires_grad and logits.requires_grad:
            gradients = _Gradients()
            seen.register_hook(gradients.to_own_size)
            logits.register_hook(gradients.to_size)
        return logits

    return searched
