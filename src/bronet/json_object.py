"""JSON objects in the files of a run, read without trust: whatever is wrong with one is told in one line.

Python's reader ends in other exceptions at deep nesting and at long numbers, and gives text that no file can hold.
"""

import json
import reprlib
from pathlib import Path

from bronet.errors import BronetError

Json = dict[str, object]

MAKE_AGAIN = "make it again or remove it"
MOST_DIGITS = 300
"""Of a whole number: a float can still hold it."""


def read_object(path: Path, *, advice: str = MAKE_AGAIN) -> Json:
    """Return the object in a file, or raise naming the file and what to do; NaN and infinity are numbers to it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BronetError(f"cannot read {path}: {error}; {advice}") from None
    return parse_object(text, path, advice=advice)


def parse_object(text: str, path: Path, *, advice: str) -> Json:
    """Return the object in a text that was read from `path`."""
    try:
        content = json.loads(text, parse_int=_whole_number)
        json.dumps(content, ensure_ascii=False).encode()  # half of a surrogate pair can be escaped, but not written
    except RecursionError:
        raise BronetError(f"{path} must be JSON, but it is nested too deeply; {advice}") from None
    except UnicodeEncodeError:
        raise BronetError(f"{path} must be JSON, but it escapes half of a surrogate pair; {advice}") from None
    except ValueError as error:
        raise BronetError(f"{path} must be JSON, but {error}; {advice}") from None
    if not isinstance(content, dict):
        raise BronetError(f"{path} must hold a JSON object, got {type(content).__name__}; {advice}")
    return content


def shown(value: object) -> str:
    """Return a value as one short line for a message."""
    return reprlib.repr(value)


def _whole_number(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)
