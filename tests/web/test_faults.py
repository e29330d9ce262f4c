"""Clients that leave, dawdle or lie, and Ctrl-C among them: a real server, whose log stays empty in every case."""

import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bronet.cli import ExitStatus
from bronet.web.server import MAX_BYTES
from serving import HOST, PATIENCE, Process, started

MANY = 400
LEAVERS = 30
HEAVY_ATTACK = {"sample": 0, "eps": 3.0, "restarts": 5}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with started(tmp_path_factory.mktemp("serve")) as server:
        yield server


@pytest.fixture
def server(running: Process) -> Iterator[Process]:
    """Return the server; whatever a test does to it, it still answers and its log stays empty."""
    yield running
    running.leave()
    assert running.ask("/")[0] == 200
    assert running.log() == ""


def closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection."""
    if not select.select([connection], [], [], 0)[0]:
        return False
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def wait_until_closed(connections: list[socket.socket], seconds: float) -> int:
    """Return how many connections are still open after so many seconds, or as soon as there are none."""
    end = time.monotonic() + seconds
    while connections and time.monotonic() < end:
        connections = [connection for connection in connections if not closed(connection)]
        time.sleep(0.05)
    return len(connections)


def test_clients_that_leave_in_the_middle_of_an_attack_leave_nothing_in_the_log(server: Process) -> None:
    body = json.dumps(HEAVY_ATTACK).encode()
    for number in range(LEAVERS):
        connection = server.connect(server.head("/api/runs/0/attack", len(body)) + body)
        if number % 3:  # others leave before the first line
            assert connection.recv(20).startswith(b"HTTP/1.1 ")
        if number % 3 == 2:
            time.sleep(0.15)
        connection.close()
    # Every place in the queue is free again, soon.
    end = time.monotonic() + 10
    while server.ask("/api/runs/0/proof", b'{"sample": 0}')[0] != 200:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_connections_that_never_ask_are_cut_and_the_page_is_served_meanwhile(server: Process) -> None:
    begun = b"GET / HTTP/1.1\r\nHost: 127.0"
    connections = [server.connect(begun if number % 2 else b"") for number in range(MANY)]
    assert server.ask("/")[0] == 200
    assert wait_until_closed(connections, PATIENCE + 5) == 0


@pytest.mark.parametrize("first", [b"", b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"], ids=["new", "used"])
def test_a_head_that_comes_byte_by_byte_is_cut(server: Process, first: bytes) -> None:
    connection = server.connect(first)
    if first:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
    end = time.monotonic() + PATIENCE + 5
    with suppress(ConnectionError):
        while time.monotonic() < end and not closed(connection):
            connection.sendall(b"x")
            time.sleep(0.1)
    assert time.monotonic() < end


def test_half_sent_files_hold_little_memory_and_are_given_up(server: Process) -> None:
    before = server.memory()
    half = server.head("/api/runs/0/upload", MAX_BYTES) + bytes(MAX_BYTES // 10)
    connections = [server.connect(half) for _ in range(100)]
    assert server.ask("/api/runs/0/proof", b'{"sample": 0}')[0] == 200  # what is small is read meanwhile
    time.sleep(PATIENCE / 2)
    assert server.memory() - before < 6 * MAX_BYTES
    answers = [connection.recv(12) for connection in connections]
    assert set(answers) == {b"HTTP/1.1 503", b"HTTP/1.1 408"}


def test_a_reader_that_never_reads_is_cut(server: Process) -> None:
    asked = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    connection = server.connect()
    connection.settimeout(PATIENCE + 5)
    with pytest.raises(ConnectionError):  # and no TimeoutError
        connection.sendall(1_000_000 * asked)


@pytest.mark.parametrize("too_many", [1, 4 * MAX_BYTES])
def test_a_file_that_is_too_large_gets_its_answer_however_much_is_sent(server: Process, too_many: int) -> None:
    for _ in range(3):
        status, content = server.ask("/api/runs/0/upload", bytes(MAX_BYTES + too_many))
        assert status == 413
        assert json.loads(content) == {"message": f"this file is too large: at most {MAX_BYTES // 2**20} MB"}


@pytest.mark.parametrize("scheme", ["file", "https", "chrome-extension"])
def test_another_scheme_is_another_web_site(server: Process, scheme: str) -> None:
    own = f"{HOST}:{server.port}"
    assert server.ask("/api/runs/0/proof", b'{"sample": 0}', origin=f"http://{own}")[0] == 200
    assert server.ask("/api/runs/0/proof", b'{"sample": 0}', origin=f"{scheme}://{own}")[0] == 403


def test_requests_that_are_none_leave_nothing_in_the_log(server: Process) -> None:
    upgrade = f"GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n".encode()
    for sent in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"\0" * 70000, b"BREW / HTTP/9\r\n\r\n", upgrade):
        with suppress(ConnectionError):
            assert server.connect(sent).recv(12)[:8] in (b"HTTP/1.1", b"")


def test_ctrl_c_among_half_sent_files_and_attacks_ends_quietly(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        body = json.dumps(HEAVY_ATTACK).encode()
        for _ in range(5):
            server.connect(server.head("/api/runs/0/attack", len(body)) + body)
        for _ in range(100):
            server.connect(server.head("/api/runs/0/upload", MAX_BYTES) + bytes(1000))
        for _ in range(20):
            server.connect(b"GET / HT")
        time.sleep(PATIENCE / 2)
        assert server.end() < 30  # not for ever: on a busy machine Python alone needs seconds to unload its modules
        assert (server.process.returncode, server.log()) == (ExitStatus.CTRL_C, "interrupted\n")
