"""The file config.json of a pretrained network: its recipe, data set, classes and how it was trained.

It is read without trust: a file that is too long, no JSON, of another version, or that contradicts itself is refused
in one line.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from bronet.data.cifar import LAYOUTS
from bronet.errors import BronetError
from bronet.files import Json, read_object
from bronet.recipe.dataset import DatasetSpec
from bronet.recipe.schema import Recipe
from bronet.recipe.text import PLACE
from bronet.records import as_plain, read_record

ADVICE = "a pretrained folder needs it"
FORMAT = "bronet"
VERSION = 1
LONGEST_FILE = 1 << 20
"""Bytes; a configuration with 1,000 classes has about 20,000."""
DIGITS = tuple("0123456789")


@dataclass(frozen=True, kw_only=True)
class PretrainedConfig:
    """What a pretrained folder says of itself; `record` is that of its training, empty where it is unknown."""

    recipe: Recipe
    classes: tuple[str, ...]
    weights_sha256: str
    record: Json

    def __post_init__(self) -> None:
        wanted = self.recipe.data.spec().classes
        if len(self.classes) != wanted:
            raise BronetError(f"classes must be the {wanted} names of {self.recipe.data.name}, got {len(self.classes)}")


def class_names(spec: DatasetSpec) -> tuple[str, ...]:
    """Return the names of the classes of a data set; numbers where the names are in its files only."""
    if spec.name in LAYOUTS:
        return LAYOUTS[spec.name].classes
    return DIGITS if spec.name == "digits" else tuple(str(number) for number in range(spec.classes))


def config_text(config: PretrainedConfig) -> str:
    """Return the JSON text of a configuration; `read_config` gives back an equal one."""
    content: Json = {
        "format": FORMAT,
        "version": VERSION,
        "recipe": as_plain(config.recipe),
        "dataset": dataclasses.asdict(config.recipe.data.spec()),
        "classes": list(config.classes),
        "weights_sha256": config.weights_sha256,
        "record": config.record,
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def read_config(path: Path) -> PretrainedConfig:
    """Return the configuration of a file, checked; raise `BronetError` naming the file and what is wrong."""
    content = _object(path)
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        found = f"{content.get('format')!r} version {content.get('version')!r}"
        raise BronetError(f"{path} must be of the format {FORMAT!r} version {VERSION}, got {found[:80]}")
    classes, record, weights = (content.get(key) for key in ("classes", "record", "weights_sha256"))
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise BronetError(f"{path}: classes must be a list of names")
    if not isinstance(weights, str) or not isinstance(record, dict):
        raise BronetError(f"{path}: weights_sha256 must be text and record an object")
    try:
        recipe = read_record(Recipe, content.get("recipe"), PLACE)
        config = PretrainedConfig(recipe=recipe, classes=tuple(classes), weights_sha256=weights, record=record)
    except BronetError as error:
        raise BronetError(f"{path}: {error}") from None
    if content.get("dataset") != dataclasses.asdict(recipe.data.spec()):
        raise BronetError(f"{path}: dataset must describe the recipe's data set {recipe.data.name}, but it differs")
    return config


def _object(path: Path) -> Json:
    try:
        size = path.stat().st_size
        if size > LONGEST_FILE:
            raise BronetError(f"{path} must have at most {LONGEST_FILE} bytes, got {size}")
    except OSError as error:
        raise BronetError(f"cannot read {path} ({error}); {ADVICE}") from None
    return read_object(path, advice=ADVICE)
