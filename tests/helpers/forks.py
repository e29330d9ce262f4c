"""The real command line in processes that start at once: a server imports everything and forks for every command.

Starting an interpreter takes seconds, forking takes milliseconds; the rest is what a user's process does. Run as a
program, this file is the server.
"""

import datetime
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

PATIENCE = 120.0
BACKWARDS = "CLOCK_GOES_BACKWARDS"
"""In the environment of a command: its wall clock goes back by an hour at every look."""
KILLED = -signal.SIGKILL


class Done(NamedTuple):
    """How a command ended: the exit status, or minus the signal, and what it printed."""

    status: int
    stdout: str
    stderr: str


class Server:
    """Starts commands, one at a time or several side by side."""

    def __init__(self, requests: IO[str], answers: IO[str], folder: Path) -> None:
        self.requests, self.answers, self.folder, self.count = requests, answers, folder, 0

    def start(self, words: Sequence[object], *, cwd: Path, environment: dict[str, str] | None = None) -> "Command":
        """Start `bronet WORDS` in a folder."""
        self.count += 1
        outputs = [str(self.folder / f"{self.count}.{name}") for name in ("out", "err")]
        for path in outputs:  # a command that is killed at once has none of its own
            Path(path).touch()
        request = {
            "words": [str(word) for word in words],
            "cwd": str(cwd),
            "outputs": outputs,
            "set": environment or {},
        }
        return Command(self, int(self._ask(request)), outputs)

    def run(self, *words: object, cwd: Path, environment: dict[str, str] | None = None) -> Done:
        """Run `bronet WORDS` in a folder to its end."""
        return self.start(words, cwd=cwd, environment=environment).end()

    def _ask(self, request: object) -> str:
        self.requests.write(json.dumps(request) + "\n")
        self.requests.flush()
        return self.answers.readline()


class Command:
    """A command that runs."""

    def __init__(self, server: Server, pid: int, outputs: list[str]) -> None:
        assert pid > 1  # 0 would be everybody
        self.server, self.pid, self.outputs = server, pid, outputs

    def end(self, *, after: float | None = None, number: signal.Signals = signal.SIGKILL) -> Done:
        """Wait for the end; `after` so many seconds send it a signal. One that hangs is killed."""
        deadline = time.monotonic() + (PATIENCE if after is None else after)
        status = self._status(deadline)
        if status is None:
            os.kill(self.pid, number if after is not None else signal.SIGKILL)
            status = self._status(time.monotonic() + PATIENCE)
        if status is None:
            os.kill(self.pid, signal.SIGKILL)
            status = int(self.server._ask({"wait": self.pid}))
        texts = [Path(path).read_text(errors="replace") for path in self.outputs]
        return Done(status, *texts)

    def _status(self, deadline: float) -> int | None:
        while True:
            if answer := int(self.server._ask({"ended": self.pid})):
                return int(self.server._ask({"wait": self.pid}))
            if answer == 0 and time.monotonic() > deadline:
                return None
            time.sleep(0.002)


@contextmanager
def forking(folder: Path) -> Iterator[Server]:
    """Serve commands until the block ends."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    words = [sys.executable, __file__]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Server(process.stdin, process.stdout, folder)
        process.stdin.close()


PRELOADED = ("bronet.attack.run", "bronet.certificates.run", "bronet.cli", "bronet.report", "bronet.training")


def _serve() -> None:
    for module in PRELOADED:
        importlib.import_module(module)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until a command begins
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            answer = os.waitstatus_to_exitcode(status)
        elif "ended" in request:
            answer = int(os.waitid(os.P_PID, request["ended"], os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None)
        else:
            answer = os.fork() or _child(request)
        print(answer, flush=True)


def _turn_clock_back() -> None:
    """Let the wall clock, but not the one for measuring times, go backwards in this process."""
    seconds = time.time()

    def earlier() -> float:
        nonlocal seconds
        seconds -= 3600
        return seconds

    class Backwards(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> "Backwards":
            return cls.fromtimestamp(earlier(), tz)

    time.time = earlier
    time.time_ns = lambda: int(earlier() * 1e9)
    for module in [module for module in sys.modules.values() if vars(module).get("datetime") is datetime.datetime]:
        vars(module)["datetime"] = Backwards


def _child(request: dict[str, object]) -> int:
    """Become the command, which has its own answer to Ctrl-C from its first moment; does not return."""
    from bronet.__main__ import main

    words, cwd, outputs, environment = (request[key] for key in ("words", "cwd", "outputs", "set"))
    assert isinstance(words, list)
    assert isinstance(outputs, list)
    assert isinstance(environment, dict)
    os.chdir(str(cwd))
    os.environ.update(environment)
    if BACKWARDS in environment:
        _turn_clock_back()
    os.close(0)
    for descriptor, path in zip((1, 2), outputs, strict=True):
        os.dup2(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), descriptor)
    sys.argv = ["bronet", *words]
    status: object = 0
    try:
        main()
    except SystemExit as end:
        status = end.code
    except BaseException:  # what the interpreter does with it
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))


if __name__ == "__main__":
    _serve()
