"""Certificates of images in memory: any model, any images that torch can read, one radius for each."""

import warnings
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bronet.certificates.run import images_at_once
from bronet.errors import BronetError
from bronet.graph.faithful import unwrapped
from bronet.graph.model import CertifiableModel
from bronet.graph.network import prove
from bronet.layers.base import IMAGE_AXES


def certified_radius(model: nn.Module, images: Any, *, batch_size: int | None = None) -> Float[Tensor, " ..."]:
    """Return the certified l2 radius of the predicted class of every image, in pixel space [0, 1]: a proof.

    Guaranteed: the float64 network (`prove(model, shape).logits`) predicts the same class at every point closer than
    the radius. Ties get 0. For many calls, keep `prove(model, shape)` and use its `certify`.

    Args:
        model: any module whose forward `bronet.check` can follow; it is proved in evaluation mode.
        images: a batch (batch, channel, height, width) or one image without a batch, or vectors, as a tensor or a NumPy
            array; of one image the result has no dimension.
        batch_size: images that are computed at once, by default as many as suit the device.
    """
    batch, is_single = _as_batch(unwrapped(model), images)
    at_once = images_at_once(batch.device, batch_size)
    network = prove(model, tuple(batch.shape[1:]))
    if not len(batch):
        return batch.new_zeros(0, dtype=torch.float64)
    if float(batch.amin()) < 0 or float(batch.amax()) > 1:
        warnings.warn("images lie outside [0, 1], where radii mean nothing; divide bytes by 255", stacklevel=2)
    radii = torch.cat([network.certify(part).radius for part in batch.split(at_once)])
    return radii[0] if is_single else radii


def _as_batch(model: nn.Module, images: Any) -> tuple[Tensor, bool]:
    """Return images as a batch, and whether it was one image without a batch."""
    if isinstance(images, Tensor):
        batch = images
    else:
        try:
            device = next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))
            batch = torch.as_tensor(images, device=device)
        except (TypeError, ValueError, RuntimeError):
            raise BronetError(f"images must be a tensor or an array, got {type(images).__name__}") from None
    if batch.ndim in (IMAGE_AXES, 1) and (batch.ndim == IMAGE_AXES or not isinstance(model, CertifiableModel)):
        return batch[None], True
    if batch.ndim not in (1 + IMAGE_AXES, 2) or (batch.ndim == 2 and isinstance(model, CertifiableModel)):
        shape = tuple(batch.shape)
        raise BronetError(f"images must have shape (batch, channel, height, width) or that of one image, got {shape}")
    return batch, False
