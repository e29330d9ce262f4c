"""The record of a training run without what belongs to one machine only: absolute paths.

A path in a command becomes its last part, so that the command still reads as it was typed.
"""

import re
from pathlib import Path, PurePosixPath, PureWindowsPath

from bronet.files import Json, read_object

ABSOLUTE = re.compile(r"(?<![\w.:/\\-])(?:/[^\s'\"=,;]+|[A-Za-z]:\\[^\s'\"=,;]+)")


def published_text(text: str) -> str:
    """Return a text with each absolute path replaced by its last part."""
    return ABSOLUTE.sub(lambda match: _last_part(match[0]), text)


def published_record(path: Path) -> Json:
    """Return the record in a file, published; empty if there is no such file."""
    record = read_object(path) if path.exists() else {}
    return {key: published_text(value) if isinstance(value, str) else value for key, value in record.items()}


def _last_part(path: str) -> str:
    kind = PurePosixPath if path.startswith("/") else PureWindowsPath
    return kind(path).name or path
