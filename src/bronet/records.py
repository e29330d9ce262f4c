"""Typed records read without trust: JSON, YAML and CSV into frozen dataclasses, whose annotations are the schema.

Nothing is written twice: unknown keys, missing keys and wrong types are refused in one line with the file, the dotted
key, the constraint and the value; ranges are checked by the class itself (`__post_init__`). Only the few kinds of
annotation that records use are read, and no others.
"""

import csv
import dataclasses
import io
import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bronet.errors import BronetError
from bronet.files import replace_text

T = TypeVar("T")
KINDS: dict[type, tuple[type | UnionType, str]] = {
    int: (int, "a whole number"),
    float: (int | float, "a number"),
    bool: (bool, "true or false"),
    str: (str, "text"),
    tuple: (list, "a list such as [a, b]"),
    dict: (dict, "a table of settings"),  # of which nothing is known
}
"""What a value of JSON or YAML must be, in words too."""
CELLS: dict[type | UnionType, tuple[str, Callable[[str], object]]] = {
    int: ("a whole number", int),
    float: ("a number", float),
    int | None: ("a whole number or nothing", lambda cell: int(cell) if cell else None),
    float | None: ("a number or nothing", lambda cell: float(cell) if cell else None),
    bool: ("0 or 1", {"0": False, "1": True}.__getitem__),
    str: ("text", str),
}
"""How a cell is read: what it must be, and its parser."""
TEXTS: dict[type, Callable[[Any], str]] = {
    float: lambda number: repr(float(number)),
    bool: lambda truth: str(int(truth)),
}
"""How a cell is written, other than by `str`."""


def require_range(name: str, value: float, least: float, most: float = math.inf) -> None:
    """Refuse a value outside [least, most]; NaN lies nowhere."""
    if not least <= value <= most:
        broken = f"at most {most:,}" if value > most else f"at least {least:,}"
        raise BronetError(f"{name} must be {broken}, got {reprlib.repr(value)}")


def require_at_least(least: float, record: object, *names: str) -> None:
    """Refuse a record with a smaller number, or NaN, in one of these fields."""
    for name in names:
        require_range(name, getattr(record, name), least)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that looks most like `word`; `known` must not be empty."""
    return get_close_matches(word, sorted(known), n=1, cutoff=0.0)[0]


def read_record(kind: type[T], value: object, what: str, *, file: Path | None = None, advice: str = "") -> T:
    """Return the dataclass `kind` read from a mapping; every key must be one of its fields.

    Values of fields with a default may be missing. The class itself then checks ranges. Messages call the whole record
    `what`, name the `file` that it was read from, and end with the `advice`.
    """
    with _told_with(f"{file}: " if file else "", advice):
        return _read(kind, value, what, "")


@contextmanager
def _told_with(where: str, advice: str) -> Iterator[None]:
    try:
        yield
    except BronetError as error:
        raise BronetError(f"{where}{error}{f'; {advice}' if advice else ''}") from None


def _read(kind: type[T], value: object, what: str, path: str) -> T:
    """Return a record whose keys have the dotted `path` before their names."""
    if not isinstance(value, Mapping):
        whole = path.rstrip(".") or f"a {what}"
        raise BronetError(f"{whole} must be a table of settings, got {reprlib.repr(value)}")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in value:
        if key not in fields:
            meant = f"{path}{nearest(str(key), fields)}"
            raise BronetError(f"unknown {what} key {path}{key}; did you mean {meant}?")
    hints = get_type_hints(kind)
    arguments: dict[str, object] = {}
    for name, field in fields.items():
        if name in value:
            arguments[name] = _read_value(hints[name], value[name], what, f"{path}{name}")
        elif field.default is dataclasses.MISSING:
            raise BronetError(f"{what} key {path}{name} is missing")
    return kind(**arguments)


def _read_value(hint: Any, value: Any, what: str, key: str) -> object:
    """Return `value` as the annotation `hint` wants it, or refuse it with its dotted key."""
    origin, inner = get_origin(hint), get_args(hint)
    if NoneType in inner:
        (kind,) = (member for member in inner if member is not NoneType)
        return None if value is None else _read_value(kind, value, what, key)
    if origin in (Union, UnionType):
        hint = _of_family(inner, value, key)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _read(hint, value, what, f"{key}.")
    accepted, wanted = (str, f"one of {', '.join(inner)}") if origin is Literal else KINDS[origin or hint]
    fits = value in inner if origin is Literal else hint is bool or not isinstance(value, bool)
    fits = fits and isinstance(value, accepted)
    if not fits:
        raise _wrong(key, wanted, value, "; put quotes around it" if hint is str else "")
    if origin is tuple:
        return tuple(_read_value(inner[0], entry, what, f"{key}[{index}]") for index, entry in enumerate(value))
    try:
        return float(value) if hint is float else value
    except OverflowError:
        raise _wrong(key, "a number that fits a float", value) from None


def _of_family(members: tuple[Any, ...], value: object, key: str) -> Any:
    """Return the one of several records that a value names by its key `family`."""
    if not isinstance(value, Mapping):
        raise _wrong(key, "a table of settings", value)
    families = {str(dataclasses.fields(member)[0].default): member for member in members}
    family = value.get("family")
    if not isinstance(family, str) or family not in families:
        raise _wrong(f"{key}.family", f"one of {', '.join(families)}", family)
    return families[family]


def _wrong(key: str, wanted: str, value: object, remedy: str = "") -> BronetError:
    """Return the error of a value that is not what it must be."""
    return BronetError(f"{key} must be {wanted}, got {reprlib.repr(value)}{remedy}")


def as_plain(record: Any, *, sparse: bool = False) -> dict[str, Any]:
    """Return a record as nested dicts, with lists for tuples, as JSON and YAML know them; `read_record`'s inverse.

    If `sparse`, keys are left out whose value is empty (None, "" or ()), as it is by default.
    """

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return as_plain(value, sparse=sparse)
        if isinstance(value, dict):
            return {key: plain(entry) for key, entry in value.items()}
        return [plain(entry) for entry in value] if isinstance(value, tuple) else value

    values = [(field, getattr(record, field.name)) for field in dataclasses.fields(record)]
    told = [(field, value) for field, value in values if not (sparse and value == field.default in (None, "", ()))]
    return {field.name: plain(value) for field, value in told}


def read_rows(kind: type[T], path: Path, *, advice: str, unique: str = "") -> list[T]:
    """Return the rows of a CSV file whose columns are the fields of `kind`, in order.

    Columns with a default, which come last, may be missing. Numbers come back with the bits that were written. No two
    rows may have the same value of the field `unique`.
    """
    lines = read_csv(path, advice=advice)
    hints, optional = get_type_hints(kind), _optional(kind)
    needed = [name for name in hints if name not in optional]
    if not lines or lines[0] not in (needed, list(hints)):
        found = ",".join(lines[0]) if lines else "an empty file"
        raise BronetError(f"{path}, line 1: header must be {','.join(needed)}, got {found}; {advice}")
    columns = [(name, *CELLS[hints[name]]) for name in lines[0]]
    rows, seen = list[T](), set[object]()
    for number, cells in enumerate(lines[1:], start=2):
        with _told_with(f"{path}, line {number}: ", advice):
            if len(cells) != len(columns):
                raise BronetError(f"must have {len(columns)} values, got {len(cells)}")
            arguments: dict[str, object] = {}
            for (name, wanted, parse), cell in zip(columns, cells, strict=True):
                try:
                    arguments[name] = parse(cell)
                except (ValueError, KeyError):
                    raise _wrong(name, wanted, cell) from None
            if unique and arguments[unique] in seen:
                raise BronetError(f"{unique} must be unique, got {arguments[unique]} again")
            seen.add(arguments.get(unique))
            rows.append(kind(**arguments))
    return rows


def rows_of(kind: type[T], columns: Mapping[str, Any]) -> list[T]:
    """Return a row for each entry of the columns: tensors or arrays, by the names of the fields."""
    entries = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [kind(**dict(zip(columns, values, strict=True))) for values in entries]


def write_rows(kind: type[T], path: Path, rows: Iterable[T]) -> None:
    """Write the rows to a CSV file, replacing it at once; a failure leaves what was there before.

    Columns with a default are left out where no row has anything else.
    """
    rows, optional = list(rows), _optional(kind)
    told = [name for name in optional if any(getattr(row, name) != optional[name] for row in rows)]
    columns = [field.name for field in dataclasses.fields(kind) if told or field.name not in optional]  # type: ignore[arg-type]
    replace_text(path, rows_text(kind, rows, columns))


def rows_text(kind: type[T], rows: Iterable[T], columns: Sequence[str]) -> str:
    """Return these columns of rows as the text of a CSV file."""
    hints = get_type_hints(kind)
    texts = {name: TEXTS.get(hints[name], str) for name in columns}
    return csv_text([columns, *([text(getattr(row, name)) for name, text in texts.items()] for row in rows)])


def _optional(kind: type[Any]) -> dict[str, object]:
    """Return the fields of a dataclass that have a default, with it."""
    fields = dataclasses.fields(kind)
    return {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}


def read_csv(path: Path, *, advice: str) -> list[list[str]]:
    """Return the lines of a CSV file as lists of cells."""
    try:
        return list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BronetError(f"cannot read rows from {path}: {error}; {advice}") from None


def csv_text(lines: Iterable[Iterable[object]]) -> str:
    """Return lines of cells as the text of a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
