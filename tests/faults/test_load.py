"""The page under a minute of load: questions, nonsense, and clients that leave or fall silent. Nothing is logged."""

import random
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from generated_images import encoded
from ledger import Tell
from serving import HOST, Site, serving

SECONDS, CLIENTS = 60, 6
RUN = "/api/runs/0"
QUESTIONS = tuple(f"{RUN}/{what}" for what in ("proof", "upload", "attack", "comparison"))
PATHS = ("/", "/api/runs", RUN, "/api/runs/9", "/none", "/../x", "/%00", *QUESTIONS)
PIECES = (b"", b"{}", b"{", b'{"sample": 1}', b'{"sample": 1, "eps": 0.1}', b"\0" * 999)


def rude(site: Site, draw: random.Random) -> None:
    """Send part of a request and leave, or wait in silence for a moment."""
    body = draw.choice((*PIECES, encoded(1), encoded(1)[:99]))
    length = draw.choice((len(body), len(body) + 99, 10**12, -1))
    head = f"POST {draw.choice(PATHS)} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {length}\r\n\r\n".encode()
    message = head + body
    with socket.create_connection((HOST, site.port), timeout=10) as connection:
        connection.sendall(message[: draw.randrange(len(message) + 1)])
        if draw.random() < 0.3:
            time.sleep(draw.random())
        if draw.random() < 0.5:
            with suppress(TimeoutError):
                connection.settimeout(0.2)
                connection.recv(draw.choice((1, 100, 10_000)))


def client(site: Site, seed: int, ends: float, counts: list[int], lost: list[str]) -> None:
    draw = random.Random(seed)
    while time.monotonic() < ends:
        counts[seed] += 1
        with suppress(OSError):  # of a connection that the server cut
            if draw.random() < 0.5:
                rude(site, draw)
                continue
            answer = site.ask(draw.choice(PATHS), draw.choice((None, *PIECES)))
            if answer.status >= 500 and answer.status != 503:  # 503: too many questions wait
                lost.append(f"{answer.status}: {answer.content[:200]!r}")


@pytest.mark.slow
def test_a_minute_of_load_leaves_an_empty_log(
    trained: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, row: Tell
) -> None:
    counts, lost = [0] * CLIENTS, list[str]()
    with serving([trained]) as site:
        capfd.readouterr()
        ends = time.monotonic() + SECONDS
        threads = [threading.Thread(target=client, args=(site, n, ends, counts, lost)) for n in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if site.ask("/").status != 200:
            lost.append("the page does not answer afterwards")
    printed = capfd.readouterr()
    lost += [line for line in (printed.out + printed.err).splitlines() if line]
    lost += [record.getMessage() for record in caplog.records]
    row("request to the page in a minute of load, half of them rude; nothing logged", sum(counts), lost)
