"""Files written whole or not at all, and JSON read without trust.

New content goes to a temporary file in the same folder, is flushed to the disk, and then takes the name. A full disk, a
crash or a lost power supply leaves the previous file as it was. Appended lines are the exception: the last one may be
cut short.

Whatever is wrong with a JSON file is told in one line: Python's reader ends in other exceptions at deep nesting and at
long numbers, and gives text that no file can hold.
"""

import errno
import hashlib
import json
import os
import reprlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bronet.errors import BronetError

Json = dict[str, object]

SEAL = "seal_sha256"
TEMPORARY_SUFFIX = ".tmp"
MAKE_AGAIN = "make it again or remove it"
MAX_DIGITS = 300
"""Of a whole number: a float can still hold it."""
JSON_FAULTS: dict[type[Exception], str] = {  # where Python's own words would not help
    RecursionError: "it is nested too deeply",
    UnicodeEncodeError: "it escapes half of a surrogate pair",
}


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, then move it to `path`; on failure nothing is left behind.

    Raises a `BronetError` with the system's reason if the disk is full or the folder cannot be written to; `write`
    reports the system's errors as `OSError`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    with _writing(path, promise="what was there before is unchanged: "):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.touch()
            usual_mode = temporary.stat().st_mode
            write(temporary)
            temporary.chmod(usual_mode)  # safetensors would leave a file that only its owner can read
            _flush(temporary, os.O_RDWR)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        if sys.platform != "win32":  # where folders cannot be opened
            _flush(path.parent, os.O_RDONLY)


def replace_bytes(path: Path, content: bytes) -> None:
    """Write a whole file atomically."""
    replace_file(path, lambda temporary: temporary.write_bytes(content))


def replace_text(path: Path, text: str) -> None:
    """Write a whole UTF-8 text file atomically."""
    replace_bytes(path, text.encode())


def write_object(path: Path, content: Json) -> None:
    """Write a JSON object, indented, atomically."""
    replace_text(path, json.dumps(content, indent=2) + "\n")


def append_line(path: Path, line: str) -> None:
    """Add one line to a text file and wait until it is on the disk."""
    with _writing(path), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def require_writable(folder: Path) -> None:
    """Raise unless this folder can be written to, or made; for work that writes only at its end. Nothing is left."""
    with _writing(folder):
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        trial = there / f".trial.{os.getpid()}{TEMPORARY_SUFFIX}"
        trial.touch()
        trial.unlink()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder, which is made if it is not there; raise if one holds it.

    The system lifts the lock, however this process ends. Windows, and file systems without locks, keep nobody out.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # of a file system without locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                told = f"{folder} must not be in use, but another process holds it; wait, or choose another"
                raise BronetError(told) from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _writing(path: Path, *, promise: str = "") -> Iterator[None]:
    """Tell the system's errors as one that says what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) or error.errno is None  # safetensors names no number
        advice = "free some space" if full else "make that place writable"
        raise BronetError(f"could not write to {path} ({error}); {promise}{advice} and try again") from None


def _flush(path: Path, flags: int) -> None:
    """Wait until a file's content, or a folder's entries, are on the disk."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sealed(facts: Json) -> Json:
    """Return the facts with a hash over all of them, which tells that none was edited afterwards."""
    rest = {key: value for key, value in facts.items() if key != SEAL}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False)
    return {**rest, SEAL: hashlib.sha256(text.encode()).hexdigest()}


def write_sealed(path: Path, facts: Json) -> None:
    """Write facts under a seal, indented, atomically."""
    write_object(path, sealed(facts))


def read_sealed(path: Path, *, advice: str = MAKE_AGAIN) -> Json:
    """Return the facts of a sealed file without their seal, or raise where they were edited."""
    facts = read_object(path, advice=advice)
    seal = facts.pop(SEAL, None)
    if sealed(facts)[SEAL] != seal:
        raise BronetError(f"the seal of {path} differs, it must be that of its facts, got {seal!r}; {advice}")
    return facts


def read_object(path: Path, *, text: str | None = None, advice: str = MAKE_AGAIN) -> Json:
    """Return the object in a file, or in a `text` from it, or raise naming the file and what to do.

    NaN and infinity are numbers to it.
    """
    try:
        text = path.read_text(encoding="utf-8") if text is None else text
    except (OSError, UnicodeDecodeError) as error:
        raise BronetError(f"cannot read {path}: {error}; {advice}") from None
    try:
        content = json.loads(text, parse_int=_whole_number, object_pairs_hook=_without_repetition)
        json.dumps(content, ensure_ascii=False).encode()  # half of a surrogate pair can be escaped, but not written
    except (RecursionError, ValueError) as error:
        fault = JSON_FAULTS.get(type(error), error)
        raise BronetError(f"{path} must be JSON, but {fault}; {advice}") from None
    if not isinstance(content, dict):
        raise BronetError(f"{path} must hold a JSON object, got {type(content).__name__}; {advice}")
    return content


def _without_repetition(pairs: list[tuple[str, object]]) -> Json:
    """Return an object; of a key that is given twice, readers would take one value or the other."""
    content = dict(pairs)
    if len(content) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {reprlib.repr(twice)} is given twice")
    return content


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)
