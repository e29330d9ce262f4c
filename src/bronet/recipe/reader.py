"""Reading plain values (dicts, lists, numbers, text) into the frozen dataclasses of a recipe.

The dataclass annotations are the schema: nothing is written twice. Unknown keys, missing keys and wrong types
are refused with the dotted key, the constraint and the value. It reads the few kinds of annotation a recipe
uses, and no others.
"""

import dataclasses
import reprlib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bronet.errors import BronetError

T = TypeVar("T")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that looks most like `word`; `known` must not be empty."""
    return get_close_matches(word, sorted(known), n=1, cutoff=0.0)[0]


def read_record(kind: type[T], value: object, path: str) -> T:
    """Return the dataclass `kind` read from a mapping; every key must be one of its fields.

    Values of fields with a default may be missing. The class itself then checks ranges.
    """
    where = path or "a recipe"
    if not isinstance(value, Mapping):
        raise BronetError(f"{where} must be a table of settings, got {reprlib.repr(value)}")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in value:
        if key not in fields:
            name = nearest(str(key), fields)
            raise BronetError(f"unknown recipe key {_join(path, str(key))}; did you mean {_join(path, name)}?")
    hints = get_type_hints(kind)
    arguments: dict[str, object] = {}
    for name, field in fields.items():
        if name in value:
            arguments[name] = read_value(hints[name], value[name], _join(path, name))
        elif field.default is dataclasses.MISSING:
            raise BronetError(f"recipe key {_join(path, name)} is missing; give it a value")
    return kind(**arguments)


def read_value(hint: Any, value: object, path: str) -> object:
    """Return `value` as the annotation `hint` wants it, or refuse it with its dotted key."""
    origin = get_origin(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return read_record(hint, value, path)
    if origin is Literal:
        return _read_choice(get_args(hint), value, path)
    if origin is tuple:
        return _read_tuple(get_args(hint)[0], value, path)
    if origin in (Union, UnionType):
        return _read_union(get_args(hint), value, path)
    return SCALARS[hint](value, path)


def _read_choice(choices: tuple[str, ...], value: object, path: str) -> str:
    if not isinstance(value, str) or value not in choices:
        raise BronetError(f"{path} must be one of {', '.join(choices)}, got {reprlib.repr(value)}")
    return value


def _read_tuple(item: Any, value: object, path: str) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise BronetError(f"{path} must be a list such as [a, b], got {reprlib.repr(value)}")
    return tuple(read_value(item, entry, f"{path}[{index}]") for index, entry in enumerate(value))


def _read_union(members: tuple[Any, ...], value: object, path: str) -> object:
    """An optional value, or records told apart by their key `family`."""
    if NoneType in members:
        (kind,) = (member for member in members if member is not NoneType)
        return None if value is None else read_value(kind, value, path)
    families = {str(dataclasses.fields(member)[0].default): member for member in members}
    if not isinstance(value, Mapping):
        raise BronetError(f"{path} must be a table of settings, got {reprlib.repr(value)}")
    family = value.get("family")
    if not isinstance(family, str) or family not in families:
        raise BronetError(f"{path}.family must be one of {', '.join(families)}, got {reprlib.repr(family)}")
    return read_record(families[family], value, path)


def _read_int(value: object, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BronetError(f"{path} must be a whole number, got {reprlib.repr(value)}")
    return value


def _read_float(value: object, path: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BronetError(f"{path} must be a number, got {reprlib.repr(value)}")
    try:
        return float(value)
    except OverflowError:
        raise BronetError(f"{path} must be a number that fits a float, got {reprlib.repr(value)}") from None


def _read_bool(value: object, path: str) -> bool:
    if not isinstance(value, bool):
        raise BronetError(f"{path} must be true or false, got {reprlib.repr(value)}")
    return value


def _read_str(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise BronetError(f"{path} must be text, got {reprlib.repr(value)}; put quotes around it")
    return value


SCALARS: dict[type, Callable[[object, str], object]] = {
    int: _read_int,
    float: _read_float,
    bool: _read_bool,
    str: _read_str,
}


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
