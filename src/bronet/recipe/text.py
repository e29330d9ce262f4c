"""Recipes as YAML text, there and back without loss: `from_text(to_text(recipe)) == recipe`.

The text contains every default, in the order of the dataclasses. Text that is read may omit defaults and may name an
architecture (`model: bronet-m`). Reading never runs code and never expands aliases, so unknown files are safe.
"""

import dataclasses
import re
import reprlib
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml

from bronet.errors import BronetError
from bronet.recipe.architecture import NAMED
from bronet.recipe.schema import Recipe
from bronet.records import as_plain, nearest, read_record

LONGEST_TEXT = 65_536  # characters; a recipe has about 1,500

Plain = dict[str, Any]


class _Loader(yaml.SafeLoader):
    """Safe YAML without aliases and duplicate keys."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed in a recipe")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        mapping: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.YAMLError(f"a key must be text, got {reprlib.repr(key)}")
            if key in mapping:
                raise yaml.YAMLError(f"the key {key} is given twice")
            mapping[key] = self.construct_object(value_node, deep=True)
        return mapping


class _Dumper(yaml.SafeDumper):
    """Safe YAML that quotes what `_Loader` would read as a number."""


# YAML 1.1 reads 1e-3 as text because it has no point, 1:30 as ninety and 010 as eight. Here numbers have their usual
# notation; everything else stays text, which is refused where a number is expected.
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)\Z")
_FLOAT = re.compile(r"([-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=e))(e[-+]?[0-9]+)?|[-+]?\.inf|\.nan)\Z", re.IGNORECASE)
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in zip(_NUMBERS, (_INT, _FLOAT), strict=True):
    _Loader.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))
_Dumper.add_implicit_resolver(_NUMBERS[1], _FLOAT, list("-+.0123456789"))


def to_text(recipe: Recipe) -> str:
    """Return the recipe as YAML with every default written out, always in the same order."""
    return yaml.dump(as_plain(recipe), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def from_text(text: str) -> Recipe:
    """Return the recipe of a YAML text; unknown keys, wrong types and values out of range are refused."""
    plain = _parse(text, "a recipe")
    if isinstance(plain, dict) and isinstance(plain.get("model"), str):
        plain["model"] = _named_architecture(plain["model"])
    return read_record(Recipe, plain, "recipe")


def read_recipe(path: Path, *, advice: str) -> Recipe:
    """Return the recipe of a YAML file; the error for an unreadable one ends with the advice."""
    try:
        return from_text(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BronetError(f"could not read the recipe {path} ({error}); {advice}") from None
    except BronetError as error:
        raise BronetError(f"in {path}: {error}") from None


def override(recipe: Recipe, assignments: Sequence[str]) -> Recipe:
    """Return the recipe with settings such as "optim.lr=2e-3" replaced, validated as a whole."""
    plain = as_plain(recipe)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise BronetError(f"a setting must be written key=value, such as optim.lr=2e-3, got {assignment!r}")
        _assign(plain, key.strip(), text.strip())
    return read_record(Recipe, plain, "recipe")


def differing_keys(left: Recipe, right: Recipe) -> list[str]:
    """Return the dotted keys whose values differ between two recipes, in the order of the file."""
    a, b = dotted(as_plain(left)), dotted(as_plain(right))
    return [key for key in dict.fromkeys([*a, *b]) if a.get(key, ...) != b.get(key, ...)]


def dotted(plain: Plain) -> Plain:
    """Return nested dicts as one dict with dotted keys."""
    flat: Plain = {}
    for key, value in plain.items():
        if isinstance(value, dict):
            flat.update({f"{key}.{inner}": entry for inner, entry in dotted(value).items()})
        else:
            flat[key] = value
    return flat


def _parse(text: str, what: str) -> Any:
    if len(text) > LONGEST_TEXT:
        raise BronetError(f"{what} must have at most {LONGEST_TEXT} characters, got {len(text)}")
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: dates and numbers that do not exist
        raise BronetError(f"{what} must be valid YAML: {' '.join(str(error).split())}") from None


def _assign(plain: Plain, key: str, text: str) -> None:
    """Replace one dotted key in place; the value of a text setting is taken literally, others are parsed as YAML."""
    if key == "model":
        plain["model"] = _named_architecture(text)
        return
    known = dotted(plain)
    if key not in known:
        raise BronetError(f"unknown recipe key {key}; did you mean {nearest(key, known)}?")
    *tables, last = key.split(".")
    target = plain
    for table in tables:
        target = target[table]
    target[last] = text if isinstance(known[key], str) else _parse(text, key)


def _named_architecture(name: str) -> Plain:
    if name not in NAMED:
        raise BronetError(f"unknown model {name!r}; did you mean {nearest(name, NAMED)!r}?")
    return dataclasses.asdict(NAMED[name])
