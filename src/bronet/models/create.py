"""From a description to a network: by name, or from an architecture of one's own."""

import difflib
from dataclasses import replace

import torch

from bronet.errors import BronetError
from bronet.models.bronet import BRONet
from bronet.models.lipconvnet import LipConvNet
from bronet.models.model import CertifiableModel
from bronet.recipe.architecture import NAMED, Architecture, BRONetArchitecture
from bronet.recipe.dataset import DatasetSpec, dataset_spec


def create_model(
    name: str,
    *,
    dataset: str,
    classes: int | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> CertifiableModel:
    """Return a named network (`bronet-m`, `lipconvnet-10-32`, ...) for the images of a known data set."""
    if name not in NAMED:
        nearest = difflib.get_close_matches(name, NAMED, n=1, cutoff=0.0)[0]
        raise BronetError(f"unknown model {name!r}; the nearest known one is {nearest!r}")
    spec = dataset_spec(dataset)
    if classes is not None:
        spec = replace(spec, classes=classes)
    return build_model(NAMED[name], spec, seed=seed, device=device, dtype=dtype)


def build_model(
    architecture: Architecture,
    spec: DatasetSpec,
    *,
    seed: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> CertifiableModel:
    """Return the network of an architecture, initialised from the seed: the same weights on every device.

    On the meta device nothing is allocated or drawn.
    """
    family = BRONet if isinstance(architecture, BRONetArchitecture) else LipConvNet
    if torch.device(device or "cpu").type == "meta":
        return family(architecture, spec, device=device, dtype=dtype)  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = family(architecture, spec, dtype=dtype)  # type: ignore[arg-type]
    return model.to(device) if device is not None else model
