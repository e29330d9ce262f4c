"""The page served for real: networks with and without certificate, a server in a thread, requests over the network."""

import http.client
import json
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
from bronet.web.served import Gallery, read_cards
from bronet.web.server import make_server, open_socket
from bronet.web.worker import Worker
from tiny_run import SETTINGS

HOST = "127.0.0.1"
SAMPLES = 40
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
    worker = Worker()
    server = make_server(gallery, worker, local=local)
    with open_socket(HOST, 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield Site(listening.getsockname()[1], gallery, worker)
        finally:
            server.should_exit = True
            thread.join()
