"""Networks by name, with fresh or with trained weights."""

from dataclasses import replace

import torch

from bronet.errors import BronetError
from bronet.models import Network, build_model
from bronet.pretrained.network import load_pretrained
from bronet.pretrained.places import pretrained_names
from bronet.recipe.architecture import NAMED
from bronet.recipe.schema import DatasetSpec, dataset_spec
from bronet.records import nearest

OWN = "own-images"
"""The name of a data set of which only shape and number of classes are known."""


def list_models(*, pretrained: bool = False) -> list[str]:
    """Return the names of all architectures, or those of the networks with trained weights."""
    return sorted(pretrained_names() if pretrained else NAMED)


def create_model(
    name: str,
    *,
    pretrained: bool = False,
    dataset: str | None = None,
    in_shape: tuple[int, int, int] | None = None,
    num_classes: int | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Network:
    """Return a named network (`list_models()`) for the images of a known data set, or of a shape of your own.

    Guaranteed: whatever the weights, the layers keep their proved bounds.

    Args:
        name: an architecture; with `pretrained` a trained network, whose data set may be left out if it has one only.
        pretrained: with its trained weights.
        dataset: a known data set, which gives shape and classes.
        in_shape: channels, height and width of an image; images are of bytes from 0 to 255.
        num_classes: how many classes; a pretrained network of another number gets a fresh head.
        seed: of fresh weights.
        device: where the network lies.
        dtype: of its parameters.
    """
    if pretrained:
        return _trained(name, dataset, in_shape, num_classes, seed).to(device=device, dtype=dtype)
    if name not in NAMED:
        raise BronetError(f"unknown model {name!r}; the nearest known one is {nearest(name, NAMED)!r}")
    if dataset is not None:
        spec = _for_classes(dataset_spec(dataset), num_classes)
        if in_shape not in (None, spec.shape):
            raise BronetError(f"in_shape must be that of {dataset}, {spec.shape}, got {in_shape}; leave one out")
    elif in_shape is None or num_classes is None:
        raise BronetError("create_model needs dataset=..., or in_shape=(channels, height, width) and num_classes=...")
    else:
        spec = DatasetSpec(OWN, *in_shape, num_classes)
    return build_model(NAMED[name], spec, seed=seed, device=device, dtype=dtype)


def _trained(
    name: str, dataset: str | None, in_shape: tuple[int, int, int] | None, num_classes: int | None, seed: int
) -> Network:
    """Return a trained network, with a fresh head if the number of classes is to be another."""
    whole = f"{name}/{dataset}" if dataset else name
    alike = [known for known in pretrained_names() if known.startswith(f"{whole}/")]
    model = load_pretrained(alike[0] if len(alike) == 1 else whole)
    if in_shape not in (None, model.image_shape):
        raise BronetError(f"in_shape of {whole} must be {model.image_shape}, got {in_shape}; leave it out")
    spec = _for_classes(model.spec, num_classes)
    if spec == model.spec:
        return model
    fresh = build_model(model.architecture, spec, seed=seed)
    kept = {key: value for key, value in model.state_dict().items() if not key.startswith("head.")}
    fresh.load_state_dict(kept, strict=False)
    return fresh.eval()


def _for_classes(spec: DatasetSpec, classes: int | None) -> DatasetSpec:
    """Return the description with so many classes, under another name if that changes it."""
    if classes is None or classes == spec.classes:
        return spec
    return replace(spec, name=f"{spec.name}-{classes}", classes=classes)
