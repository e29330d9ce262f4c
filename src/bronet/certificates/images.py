"""Certificates of images in memory: any model, any images that torch can read, one radius for each."""

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from bronet.certificates.run import images_at_once
from bronet.data import batches_of
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
            array; of one image the result has no dimension. Or a data set or a loader of torch, which may give labels
            too; the radii come in its order.
        batch_size: images that are computed at once, by default as many as suit the device.
    """
    batches: Iterator[Tensor]
    if isinstance(images, (Dataset, DataLoader)):
        batches, is_single = (pixels for pixels, _ in batches_of(images)), False
    else:
        batch, is_single = _as_batch(unwrapped(model), images)
        batches = iter([batch])
    network, radii = None, list[Tensor]()
    for batch in batches:
        network = network or prove(model, tuple(batch.shape[1:]))
        place = batch.device if isinstance(images, Tensor) else network.device
        if batch.numel() and not 0 <= float(batch.amin()) <= float(batch.amax()) <= 1:
            warnings.warn("images lie outside [0, 1], where radii mean nothing; divide bytes by 255", stacklevel=2)
        parts = batch.to(place).split(images_at_once(place, batch_size)) if len(batch) else ()
        radii += [network.certify(part).radius for part in parts] or [batch.new_zeros(0, dtype=torch.float64)]
    if not radii:
        raise BronetError("images must be at least one batch, got an empty data set")
    return torch.cat(radii)[0] if is_single else torch.cat(radii)


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
