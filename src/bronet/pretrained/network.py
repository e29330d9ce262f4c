"""Networks by name, with fresh or trained weights, and the file config.json that says what a pretrained folder holds.

`places` says where a network with a name lies. A folder is that of a run, or of the form that this room writes: its
configuration is read without trust, and one that is too long, no JSON, of another version, or that contradicts itself
is refused in one line. Nothing is allocated before the names and shapes in the weights' file are those of the network
that the recipe describes, so that a hostile folder can waste no more memory than its own size.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from bronet.data.official import LAYOUTS
from bronet.errors import BronetError
from bronet.files import Json, read_object
from bronet.models import Network, build_model
from bronet.pretrained.places import CONFIG, named_folder, pretrained_names
from bronet.recipe.architecture import NAMED
from bronet.recipe.schema import DatasetSpec, Recipe, dataset_spec
from bronet.recipe.text import differing_keys
from bronet.records import as_plain, nearest, read_record
from bronet.run.certificate import file_hash
from bronet.run.folder import RunFolder
from bronet.run.weights import stored_recipe, trained_model

WEIGHTS = "model.safetensors"
ADVICE = "a pretrained folder needs it"
FORMAT = "bronet"
VERSION = 1
LONGEST_FILE = 1 << 20
"""Bytes; a configuration with 1,000 classes has about 20,000."""
OWN = "own-images"
"""The name of a data set of which only shape and number of classes are known."""


@dataclass(frozen=True, kw_only=True)
class PretrainedConfig:
    """What a pretrained folder says of itself; `record` is that of its training, empty where it is unknown."""

    recipe: Recipe
    dataset: DatasetSpec
    classes: tuple[str, ...]
    weights_sha256: str
    record: Json

    def __post_init__(self) -> None:
        if self.dataset != (spec := self.recipe.data.spec()):
            raise BronetError(f"dataset must describe the recipe's data set {spec.name}, but it differs")
        if len(self.classes) != spec.classes:
            raise BronetError(f"classes must be the {spec.classes} names of {spec.name}, got {len(self.classes)}")


def class_names(spec: DatasetSpec) -> tuple[str, ...]:
    """Return the names of the classes of a data set; numbers where the names are in its files only."""
    return LAYOUTS[spec.name].classes if spec.name in LAYOUTS else tuple(map(str, range(spec.classes)))


def config_text(config: PretrainedConfig) -> str:
    """Return the JSON text of a configuration; `read_config` gives back an equal one."""
    return json.dumps({"format": FORMAT, "version": VERSION, **as_plain(config)}, indent=2, ensure_ascii=False) + "\n"


def read_config(path: Path) -> PretrainedConfig:
    """Return the configuration of a file, checked; raise `BronetError` naming the file and what is wrong."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise BronetError(f"cannot read {path} ({error}); {ADVICE}") from None
    if size > LONGEST_FILE:
        raise BronetError(f"{path} must have at most {LONGEST_FILE} bytes, got {size}")
    content = read_object(path, advice=ADVICE)
    format, version = content.pop("format", None), content.pop("version", None)
    if format != FORMAT or version != VERSION:
        found = f"{format!r} version {version!r}"
        raise BronetError(f"{path} must be of the format {FORMAT!r} version {VERSION}, got {found[:80]}")
    return read_record(PretrainedConfig, content, "configuration", file=path, advice="save the network again")


@dataclass(frozen=True)
class TrainedNetwork:
    """A trained network that was found, not yet loaded.

    `weights_sha256` is what its configuration promises of the file; None for a run folder, which promises nothing.
    """

    name: str
    folder: Path
    recipe: Recipe
    record: Json = field(default_factory=dict)
    weights_sha256: str | None = None
    classes: tuple[str, ...] = ()

    @property
    def weights(self) -> Path:
        """The file of its weights."""
        return self.folder / WEIGHTS


def find_network(what: Path | str) -> TrainedNetwork:
    """Return the network of a run folder, of a pretrained folder, or of a name; existing folders come first."""
    folder = Path(what)
    name = folder.resolve().name
    if (run := RunFolder(folder)).recipe_file.is_file():
        return TrainedNetwork(name, folder, run.recipe, classes=run.classes())
    if not (folder / CONFIG).is_file():
        name, folder = str(what), named_folder(str(what))
    config = read_config(folder / CONFIG)
    return TrainedNetwork(name, folder, config.recipe, config.record, config.weights_sha256, config.classes)


def load_pretrained(what: Path | str, *, device: torch.device | str = "cpu") -> Network:
    """Return the network of a name or a folder, in evaluation mode; the error for an unknown name says where it looked.

    Guaranteed: every tensor of the model came from the file, has the model's shape and is finite. The file's bytes are
    those that the configuration names.
    """
    network = find_network(what)
    check_weights(network)
    if differing := differing_keys(stored_recipe(network.weights), network.recipe):
        raise BronetError(f"{network.folder}: its two files must have one recipe, but {differing[0]} differs")
    model = trained_model(network.weights, network.recipe, device=device)
    model.classes = network.classes or class_names(model.spec)
    return model


def check_weights(network: TrainedNetwork) -> None:
    """Raise unless the weights are there, and are those that the configuration names."""
    if not network.weights.is_file():
        raise BronetError(f"{network.name} must have its weights in {network.weights}, but there is no such file")
    if network.weights_sha256 is not None and file_hash(network.weights) != network.weights_sha256:
        raise BronetError(f"{network.weights} must be the file that {CONFIG} names by its hash, but its bytes differ")


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
