"""`bronet serve` as a program: one line for every mistake, and Ctrl-C ends it."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bronet.cli import ExitStatus, app
from bronet.web import address, is_local, open_socket
from serving import HOST, make_colour_run

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def refusal(*words: str) -> str:
    result = CliRunner().invoke(app, ["serve", *words])
    assert result.exit_code == ExitStatus.USER_ERROR
    (line,) = result.stderr.splitlines()
    return line


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert refusal() == "error: bronet serve needs uvicorn; pip install 'bronet[web]'"


def test_without_a_run_one_line_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "`bronet quickstart` makes it" in refusal("--port", "0")
    assert "nowhere must be a run's folder" in refusal("nowhere", "--port", "0")


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        assert refusal("--port", str(port)).startswith(f"error: --port must be free, got {port}")


@pytest.mark.parametrize("host", ["no such host", "203.0.113.7"])
def test_a_host_that_is_not_this_machine_is_one_line(host: str) -> None:
    assert f"{host}" in refusal("--host", host, "--port", "0")


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("127.0.0.2", True),
        ("0.0.0.0", False),
        ("localhost.example", False),
    ],
)
def test_only_this_machine_is_local(host: str, local: bool) -> None:
    assert is_local(host) is local


def test_the_address_names_the_port_that_was_taken() -> None:
    with open_socket(HOST, 0) as listening:
        assert address(listening, HOST) == f"http://127.0.0.1:{listening.getsockname()[1]}/"
        assert address(listening, "::1").startswith("http://[::1]:")


def test_ctrl_c_ends_the_server_in_the_middle_of_an_attack(tmp_path: Path) -> None:
    words = [sys.executable, "-u", "-m", "bronet", "serve", str(make_colour_run(tmp_path / "run")), "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": ENVIRONMENT}
    with subprocess.Popen([*words, "--host", "0.0.0.0"], **pipes) as process:  # type: ignore[call-overload]
        lines = [process.stdout.readline() for _ in range(3)]
        assert lines[1].startswith("warning: whoever reaches 0.0.0.0 can use this page")
        port = int(lines[2].partition(":")[2].rpartition(":")[2].partition("/")[0])
        connection = http.client.HTTPConnection(HOST, port, timeout=30)
        image = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
        body = json.dumps({"image": image, "eps": 0.5, "restarts": 5})
        connection.request("POST", "/api/runs/0/attack", body, {"content-type": "application/json"})
        connection.getresponse().readline()
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
        connection.close()
    assert process.returncode == ExitStatus.CTRL_C
    assert errors == "interrupted\n"
