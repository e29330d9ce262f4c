"""Certifying and attacking in several processes gives the bytes of one; other commands run in the first alone."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bronet.attack.run import attack_run
from bronet.certificates.run import certify_run
from bronet.certificates.verify import verify_run
from bronet.errors import BronetError
from bronet.files import held
from bronet.run.attack_rows import AttackPlan
from bronet.run.certificate import read_certificate
from bronet.run.shares import ALONE, Parts, Share, ShareDone
from tiny_run import train_tiny_run
from torchrun import dealt_out

LIMIT = 230
PLAN = AttackPlan(attack="pgd", steps=2, restarts=1, batch_size=40)
SHARES = [Share(rank, 3) for rank in (2, 1, 0)]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny_run(tmp_path_factory.mktemp("shares") / "run")


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two copies: for one process, and for several."""
    return shutil.copytree(trained, tmp_path / "one"), shutil.copytree(trained, tmp_path / "run")


def same(runs: tuple[Path, Path], *names: str) -> bool:
    return all((runs[0] / name).read_bytes() == (runs[1] / name).read_bytes() for name in names)


def test_every_image_belongs_to_one_process() -> None:
    for first in range(0, 1000, 40):
        assert sum(share.takes(first, 40) for share in SHARES) == 1


def test_only_the_batches_that_are_missing_are_computed(tmp_path: Path) -> None:
    parts, computed = Parts(tmp_path / "rows.csv", "anything", ALONE), list[int]()

    def compute(first: int) -> Share:
        computed.append(first)
        return Share(first)

    for missing in ((0, 40, 80), (0,), (40,), (80,), ()):
        for first in missing if computed else ():
            next(tmp_path.glob(f".rows.parts/*-{first}.json")).unlink()
        computed.clear()
        found = [share.rank for new in parts.results(Share, (0, 40, 80), 40, compute) for share in new]
        assert tuple(computed) == missing
        assert sorted(found) == [0, 40, 80]


def test_shares_of_a_certificate_are_that_of_one_process(runs: tuple[Path, Path]) -> None:
    whole = certify_run(runs[0], limit=LIMIT, targeted=True)
    seen: list[tuple[int, int]] = []
    for share in SHARES[:2]:
        with pytest.raises(ShareDone):
            certify_run(runs[1], limit=LIMIT, targeted=True, share=share)
    dealt = certify_run(
        runs[1], limit=LIMIT, targeted=True, share=SHARES[2], progress=lambda *counts: seen.append(counts)
    )
    assert dealt.rows == whole.rows
    assert same(runs, "certificate.csv", "targeted.csv")
    assert read_certificate(runs[1] / "certificate.json").rows_sha256 == whole.certificate.rows_sha256
    assert seen[-1] == (LIMIT, LIMIT)
    assert not list(runs[1].glob(".*"))


def test_certifying_goes_on_from_what_is_there_and_takes_nothing_else(runs: tuple[Path, Path]) -> None:
    with pytest.raises(ShareDone):
        certify_run(runs[1], limit=LIMIT, share=Share(1, 2))
    parts = {path.name: path.stat().st_mtime_ns for path in runs[1].glob(".*/*")}
    with pytest.raises(ShareDone):
        certify_run(runs[1], limit=LIMIT, share=Share(1, 2))
    assert {path.name: path.stat().st_mtime_ns for path in runs[1].glob(".*/*")} == parts
    (runs[1] / ".certificate.csv.1.tmp").touch()  # of a write that was killed
    certify_run(runs[1], limit=10)  # of other images: nothing of it is taken
    assert verify_run(runs[1]).images == 10
    assert not list(runs[1].glob(".*"))


def _emptied(part: dict[str, list[object]]) -> None:
    part["rows"], part["rounding"] = [], []


def _shortened(part: dict[str, list[object]]) -> None:
    part["rows"].pop()
    part["rounding"].pop()


@pytest.mark.parametrize(
    ("forge", "words"),
    [(_emptied, "must be of the same images"), (_shortened, r"parts must hold each of the \d+ images once")],
)
def test_parts_that_lack_images_are_refused_in_one_line(
    forge: Callable[[dict[str, list[object]]], None], words: str, runs: tuple[Path, Path]
) -> None:
    for share in SHARES[:2]:
        with pytest.raises(ShareDone):
            certify_run(runs[0], limit=LIMIT, batch_size=40, share=share)
    path = next(runs[0].glob(".certificate.parts/*.json"))
    part = json.loads(path.read_text())
    forge(part)
    path.write_text(json.dumps(part))
    with pytest.raises(BronetError, match=words):
        certify_run(runs[0], limit=LIMIT, batch_size=40)
    assert not (runs[0] / "certificate.json").exists()


def test_shares_of_an_attack_are_that_of_one_process(runs: tuple[Path, Path]) -> None:
    whole = attack_run(runs[0], PLAN, limit=LIMIT)
    for share in SHARES[:2]:
        with pytest.raises(ShareDone):
            attack_run(runs[1], PLAN, limit=LIMIT, share=share)
    dealt = attack_run(runs[1], PLAN, limit=LIMIT, share=SHARES[2])
    assert dealt.rows == whole.rows
    assert same(runs, dealt.path.name)
    assert not list(runs[1].glob(".*"))


def test_two_certifyings_of_one_split_exclude_each_other(runs: tuple[Path, Path]) -> None:
    with held(runs[1] / ".certificate.parts"), pytest.raises(BronetError, match=r"\.parts must not be in use"):
        certify_run(runs[1], limit=10)
    certify_run(runs[1], limit=10)


@pytest.mark.parametrize("name", ["certify", "attack"])
def test_torchrun_gives_the_bytes_of_one_process_and_one_voice(name: str, runs: tuple[Path, Path]) -> None:
    if name == "certify":
        certify_run(runs[0], limit=LIMIT)
        words, rows = ("certify", "run", "--limit", str(LIMIT)), "certificate.csv"
    else:
        attack_run(runs[0], PLAN, limit=LIMIT)
        options = ("--attack", "pgd", "--steps", "2", "--restarts", "1", "--batch-size", "40", "--limit", str(LIMIT))
        words, rows = ("attack", "run", *options), "attack-pgd-l2-36_255.csv"
    with dealt_out(runs[1].parent, *words, "--device", "cpu") as command:
        stdout, stderr = command.communicate(timeout=120)
    assert command.returncode == 0, stderr
    assert same(runs, rows)
    assert stdout.count("rows:") == 1
    assert f"{LIMIT:,} of {LIMIT:,} images" in stdout


def test_other_commands_under_torchrun_run_once(runs: tuple[Path, Path]) -> None:
    certify_run(runs[1], limit=10)
    with dealt_out(runs[1].parent, "verify", "run", "--device", "cpu") as command:
        stdout, stderr = command.communicate(timeout=120)
    assert command.returncode == 0, stderr
    assert stdout.count("verified: 10 images") == 1
