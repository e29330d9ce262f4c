"""Labelled images as one uint8 tensor, and the split that holds part of them out for tuning.

Each batch is converted to floats in [0, 1], the space of the paper's radii, so that a whole data set fits on the
training device as bytes. The stored values are not copied: do not write into them.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from bronet.data.randomness import stable_hash
from bronet.errors import BronetError


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images with labels: n >= 1, every label names a class, every stored value lies in 0 .. scale.

    The value of a pixel is its stored byte divided by `scale`.
    """

    name: str
    images: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]
    classes: tuple[str, ...]
    scale: int

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.ndim != 4 or images.dtype != torch.uint8:
            raise BronetError(
                f"images of {self.name} must be uint8 of shape (n, c, h, w), "
                f"got {images.dtype} of shape {tuple(images.shape)}"
            )
        if images.numel() == 0:
            raise BronetError(f"images of {self.name} must not be empty, got shape {tuple(images.shape)}")
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise BronetError(
                f"labels of {self.name} must be int64 of shape ({len(images)},), "
                f"got {labels.dtype} of shape {tuple(labels.shape)}"
            )
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= len(self.classes):
            wrong = low if low < 0 else high
            raise BronetError(
                f"labels of {self.name} must satisfy 0 <= label < {len(self.classes)}, got {wrong}; "
                "check that the data set and the number of classes belong together"
            )
        brightest = int(images.max())
        if brightest > self.scale:
            raise BronetError(f"pixels of {self.name} must be at most scale = {self.scale}, got {brightest}")

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device | str) -> "ImageSet":
        """Return the same images on `device`."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def pixels(self, index: Int64[Tensor, " b"], dtype: torch.dtype = torch.float32) -> Float[Tensor, "b c h w"]:
        """Return the images at `index` as floats in [0, 1]: byte / scale, rounded once, in `dtype`."""
        return self.images[self._local(index)].to(dtype) / self.scale

    def subset(self, index: Int64[Tensor, " b"]) -> "ImageSet":
        """Return the images at `index`, in that order, with all classes kept."""
        local = self._local(index)
        return replace(self, images=self.images[local], labels=self.labels[local])

    def _local(self, index: Int64[Tensor, " b"]) -> Int64[Tensor, " b"]:
        return index.to(self.images.device, non_blocking=True)


def stratified_split(
    labels: Int64[Tensor, " n"], held_out: int, seed: int
) -> tuple[Int64[Tensor, " kept"], Int64[Tensor, " held"]]:
    """Return two increasing index tensors on the CPU, (kept, held), that partition 0 .. n - 1.

    Exactly `held_out` images are held; a class of m images gives m * held_out / n of them, rounded up or down. Images
    are ranked by a hash, not by a random number generator, so the split is the same in every version of torch.
    """
    n = len(labels)
    if not 1 <= held_out < n:
        raise BronetError(f"held-out images must satisfy 1 <= held_out < n = {n}, got {held_out}")
    members: dict[int, list[int]] = {}
    for position, label in enumerate(labels.tolist()):
        members.setdefault(label, []).append(position)
    held: list[int] = []
    for label, share in _shares({label: len(m) for label, m in members.items()}, held_out).items():
        held += sorted(members[label], key=lambda position: stable_hash(seed, "split", position))[:share]
    left_out = set(held)
    kept = [position for position in range(n) if position not in left_out]
    return torch.tensor(kept, dtype=torch.int64), torch.tensor(sorted(held), dtype=torch.int64)


def _shares(counts: dict[int, int], total: int) -> dict[int, int]:
    """Divide `total` in proportion to `counts`: rounded down, with the rest given to the largest remainders."""
    n = sum(counts.values())
    shares = {label: count * total // n for label, count in counts.items()}
    by_remainder = sorted(counts, key=lambda label: (-(counts[label] * total % n), label))
    for label in by_remainder[: total - sum(shares.values())]:
        shares[label] += 1
    return shares
