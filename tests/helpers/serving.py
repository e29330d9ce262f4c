"""The page served for real: in a thread or in a process of its own, networks with and without certificate, requests."""

import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bronet.models import build_model
from bronet.recipe import named_recipe, override
from bronet.recipe.schema import DataRecipe
from bronet.run.folder import create_run
from bronet.run.weights import save_weights
from bronet.web import open_socket
from bronet.web.app import Worker
from bronet.web.served import Gallery, read_cards
from bronet.web.server import Server
from tiny_run import SETTINGS

HOST = "127.0.0.1"
SAMPLES = 40
DIGITS = "bronet-digits/digits"
PATIENCE = 1.0
"""Seconds that the server of these tests waits for a client, to keep the tests short."""
PROGRAM = f"""
import sys
from bronet.__main__ import main
from bronet.web import server
server.REQUEST_SECONDS = server.READ_SECONDS = server.BODY_SECONDS = {PATIENCE}
sys.argv = ["bronet", "serve", *sys.argv[1:]]
main()
"""
Json = dict[str, Any]


def make_colour_run(folder: Path) -> Path:
    """Return a run on coloured images of one's own, which are not there; its network is not trained."""
    recipe = override(named_recipe("digits/quickstart"), [entry for entry in SETTINGS if entry.startswith("model.")])
    recipe = replace(recipe, name="colours", data=DataRecipe(name="mine", channels=3, height=8, width=8, classes=3))
    torch.manual_seed(0)
    save_weights(
        create_run(folder, recipe).weights, build_model(recipe.model, recipe.data.spec()).state_dict(), recipe=recipe
    )
    return folder


class Answer(NamedTuple):
    """Status, headers and content of an answer."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def lines(self) -> list[Json]:
        return [json.loads(line) for line in self.content.splitlines()]


class Site(NamedTuple):
    """A server that runs, and what it works with."""

    port: int
    gallery: Gallery
    worker: Worker

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/"

    def ask(self, path: str, content: bytes | Json | None = None, **headers: str) -> Answer:
        """Send a request: POST if there is something to send."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(content, dict):
            content, sent = json.dumps(content).encode(), {"content-type": "application/json"} | sent
        try:
            connection.request("GET" if content is None else "POST", path, content, sent)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()


@contextmanager
def serving(runs: list[Path], *, local: bool = True, samples: int = SAMPLES) -> Iterator[Site]:
    """Serve runs in a thread until the block ends."""
    gallery = Gallery(read_cards([str(run) for run in runs]), samples=samples, device="cpu", data_dir=None)
    server = Server(gallery, local=local)
    with open_socket(HOST, 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield Site(listening.getsockname()[1], gallery, server.worker)
        finally:
            server.should_exit = True
            thread.join()


class Process:
    """`bronet serve` as a process of its own: requests byte by byte, its memory, and all that it wrote."""

    def __init__(self, process: "subprocess.Popen[str]", port: int, log: Path) -> None:
        self.process, self.port, self._log = process, port, log
        self._connections: list[socket.socket] = []

    def connect(self, sent: bytes = b"") -> socket.socket:
        """Open a connection and send something; it stays open until `leave`."""
        connection = socket.create_connection((HOST, self.port), timeout=20)
        self._connections.append(connection)
        connection.sendall(sent)
        return connection

    def leave(self) -> None:
        """Close all connections."""
        while self._connections:
            self._connections.pop().close()

    def head(self, path: str, length: int) -> bytes:
        """Return the head of a request with so long a body."""
        lines = [f"POST {path} HTTP/1.1", f"Host: {HOST}:{self.port}", f"Content-Length: {length}"]
        return "\r\n".join([*lines, "Content-Type: application/json", "", ""]).encode()

    def ask(self, path: str, content: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """Return status and content of an answer."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=20)
        try:
            sent = {"content-type": "application/json", **headers}
            connection.request("GET" if content is None else "POST", path, content, sent)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def memory(self) -> int:
        """Return the bytes of memory that the process holds."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * resource.getpagesize()

    def log(self) -> str:
        """Return all that was written to standard error."""
        return self._log.read_text(encoding="utf-8")

    def end(self) -> float:
        """Press Ctrl-C; return the seconds until the process has ended."""
        start = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=60)
        return time.monotonic() - start


@contextmanager
def started(folder: Path) -> Iterator[Process]:
    """Start a server of the packaged network of the digits."""
    words = [sys.executable, "-u", "-c", PROGRAM, DIGITS, "--port", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    log = folder / "log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, cwd=folder
        ) as process,
    ):
        assert process.stdout is not None
        try:
            serving = next(line for line in process.stdout if line.startswith("serving"))
            server = Process(process, int(serving.rpartition(":")[2].partition("/")[0]), log)
            yield server
            server.leave()
        finally:
            process.kill()
