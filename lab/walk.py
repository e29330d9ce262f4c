"""The way of the data: the files of bronet in which a function runs during a command.

How many files one has to know to follow a command. Code that runs while a module is imported does not count, nor do
files of which only constants or classes are used. Other processes are not seen.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from inspect import CO_OPTIMIZED
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import bronet
from bronet.cli import app
from bronet.errors import BronetError

SOURCE = Path(bronet.__file__).parent
TRAIN = ("train", "digits/quickstart", "--set", "train.epochs=1", "--set", "optim.warmup_epochs=0", "--out", "run")
CERTIFY = ("certify", "run", "--limit", "20")
COMMANDS = {"train": (TRAIN,), "certify": (TRAIN, CERTIFY)}
"""What is run for each walk: the last command is watched, those before it prepare its folder."""


def walk(name: str) -> Counter[str]:
    """Return the files of bronet, relative to the package, with the number of calls of their functions."""
    if name not in COMMANDS:
        raise BronetError(f"a walk must be one of {', '.join(COMMANDS)}, got {name}")
    *before, watched = COMMANDS[name]
    with TemporaryDirectory() as folder, chdir(folder), redirect_stdout(StringIO()):
        for words in before:
            _run(words)
        return files_of(lambda: _run(watched))


def _run(words: tuple[str, ...]) -> None:
    status = app(list(words), standalone_mode=False)
    if status:
        raise BronetError(f"the command must succeed to be followed, got status {status}: bronet {' '.join(words)}")


def files_of(command: Callable[[], object]) -> Counter[str]:
    """Return the files of bronet in which a function runs while the command does, in any thread of this process."""
    seen: Counter[str] = Counter()
    importing = threading.local()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        depth = getattr(importing, "depth", 0)
        if event in ("call", "return") and code.co_name == "<module>":
            importing.depth = depth + (1 if event == "call" else -1)
        elif event == "call" and depth == 0 and code.co_flags & CO_OPTIMIZED:  # a function, not the body of a class
            path = Path(code.co_filename)
            if path.is_relative_to(SOURCE):
                seen[path.relative_to(SOURCE).as_posix()] += 1

    earlier = sys.getprofile()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        command()
    finally:
        sys.setprofile(earlier)
        threading.setprofile(None)  # type: ignore[arg-type]
    return seen
