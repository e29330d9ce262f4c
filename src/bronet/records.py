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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bronet.errors import BronetError
from bronet.files import replace_text

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """Where a value stands and what to do if it is wrong: the words of an error.

    `kind` is what the whole record is called; the other words may be empty.
    """

    kind: str = "record"
    file: str = ""
    key: str = ""
    advice: str = ""

    def at(self, key: str) -> "Place":
        """Return the place of one of this record's keys."""
        return dataclasses.replace(self, key=f"{self.key}.{key}" if self.key else key)

    def entry(self, index: int) -> "Place":
        """Return the place of one entry of this list."""
        return dataclasses.replace(self, key=f"{self.key}[{index}]")

    def error(self, text: str, *, advice: str = "") -> BronetError:
        """Return the error that says what is wrong here."""
        file = f"{self.file}: " if self.file else ""
        advice = self.advice or advice
        return BronetError(f"{file}{text}{f'; {advice}' if advice else ''}")

    def wrong(self, wanted: str, value: object, *, advice: str = "") -> BronetError:
        """Return the error of a value that is not what it must be."""
        return self.error(f"{self.key} must be {wanted}, got {reprlib.repr(value)}", advice=advice)


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


def read_record(kind: type[T], value: object, place: Place) -> T:
    """Return the dataclass `kind` read from a mapping; every key must be one of its fields.

    Values of fields with a default may be missing. The class itself then checks ranges.
    """
    if not isinstance(value, Mapping):
        raise place.error(f"{place.key or f'a {place.kind}'} must be a table of settings, got {reprlib.repr(value)}")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in value:
        if key not in fields:
            meant = place.at(nearest(str(key), fields)).key
            raise dataclasses.replace(place, advice="").error(
                f"unknown {place.kind} key {place.at(str(key)).key}; did you mean {meant}?"
            )
    hints = get_type_hints(kind)
    arguments: dict[str, object] = {}
    for name, field in fields.items():
        if name in value:
            arguments[name] = _read_value(hints[name], value[name], place.at(name))
        elif field.default is dataclasses.MISSING:
            raise place.error(f"{place.kind} key {place.at(name).key} is missing", advice="give it a value")
    return _made(kind, arguments, place)


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
    columns = [(name, CELLS[hints[name]]) for name in lines[0]]
    rows, seen = list[T](), set[object]()
    for number, cells in enumerate(lines[1:], start=2):
        place = Place(file=f"{path}, line {number}", advice=advice)
        if len(cells) != len(columns):
            raise place.error(f"must have {len(columns)} values, got {len(cells)}")
        arguments: dict[str, object] = {}
        for (name, (wanted, parse)), cell in zip(columns, cells, strict=True):
            try:
                arguments[name] = parse(cell)
            except (ValueError, KeyError):
                raise place.at(name).wrong(wanted, cell) from None
        if unique and arguments[unique] in seen:
            raise place.error(f"{unique} must be unique, got {arguments[unique]} again")
        seen.add(arguments.get(unique))
        rows.append(_made(kind, arguments, place))
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


def _made(kind: type[T], arguments: Mapping[str, object], place: Place) -> T:
    """Return the record, or the error of its own checks with the file before it."""
    try:
        return kind(**arguments)
    except BronetError as error:
        raise (place.error(str(error)) if place.file else error) from None


def _read_value(hint: Any, value: object, place: Place) -> object:
    """Return `value` as the annotation `hint` wants it, or refuse it with its dotted key."""
    origin = get_origin(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return read_record(hint, value, place)
    if origin is Literal:
        if not isinstance(value, str) or value not in get_args(hint):
            raise place.wrong(f"one of {', '.join(get_args(hint))}", value)
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise place.wrong("a list such as [a, b]", value)
        return tuple(_read_value(get_args(hint)[0], entry, place.entry(index)) for index, entry in enumerate(value))
    if origin is dict:  # of which nothing is known
        if not isinstance(value, dict):
            raise place.wrong("a table of settings", value)
        return value
    if origin in (Union, UnionType):
        return _read_union(get_args(hint), value, place)
    accepted, wanted, advice = SCALARS[hint]
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        raise place.wrong(wanted, value, advice=advice)
    try:
        return hint(value)
    except OverflowError:
        raise place.wrong("a number that fits a float", value) from None


def _read_union(members: tuple[Any, ...], value: object, place: Place) -> object:
    """An optional value, or records told apart by their key `family`."""
    if NoneType in members:
        (kind,) = (member for member in members if member is not NoneType)
        return None if value is None else _read_value(kind, value, place)
    families = {str(dataclasses.fields(member)[0].default): member for member in members}
    if not isinstance(value, Mapping):
        raise place.wrong("a table of settings", value)
    family = value.get("family")
    if not isinstance(family, str) or family not in families:
        raise place.at("family").wrong(f"one of {', '.join(families)}", family)
    return read_record(families[family], value, place)


SCALARS: dict[type, tuple[type | UnionType, str, str]] = {
    int: (int, "a whole number", ""),
    float: (int | float, "a number", ""),
    bool: (bool, "true or false", ""),
    str: (str, "text", "put quotes around it"),
}
"""What a value of JSON or YAML must be, in words too, and advice."""
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
