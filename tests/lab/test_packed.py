"""Packed rows: what was certified and attacked, bit for bit but for margins, and refused where anything differs."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bronet.attack.run import attack_run
from bronet.certificates.run import certify_run
from bronet.errors import BronetError
from bronet.report.evidence import read_evidence
from bronet.run.attack_rows import AttackPlan, read_attack_rows
from lab.packed import FILE, pack, unpacked
from lab.publish import publish
from lab.tables.published import published_runs
from tiny_run import train_tiny_run

pytestmark = pytest.mark.usefixtures("one_thread")
ATTACK = "attack-pgd-l2-8_255"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run, certified on test and training images, attacked, and published."""
    folder = train_tiny_run(tmp_path_factory.mktemp("tiny") / "run")
    certify_run(folder, limit=40)
    certify_run(folder, split="train", limit=30)
    attack_run(folder, AttackPlan(attack="pgd", norm="l2", eps="8/255", steps=2, restarts=1), limit=5)
    (out, *_) = publish(folder, folder.with_name("results") / "tiny")
    return out


@pytest.fixture
def packed(published: Path, tmp_path: Path) -> Path:
    folder = shutil.copytree(published, tmp_path / "results" / "tiny")
    pack(folder)
    return folder


def test_rows_come_back_as_they_were_but_for_margins_rounded_down(published: Path, packed: Path) -> None:
    assert not [*packed.glob("*.csv"), *packed.glob("*.jsonl")]
    before = read_evidence(published)
    with unpacked(packed) as folder:
        after = read_evidence(folder)
        assert read_attack_rows(folder / f"{ATTACK}.csv") == read_attack_rows(published / f"{ATTACK}.csv")
    for old, new in zip((*before.rows, *before.train_rows), (*after.rows, *after.train_rows), strict=True):
        assert (old.index, old.label, old.prediction, old.radius, old.naive_radius) == (
            new.index,
            new.label,
            new.prediction,
            new.radius,
            new.naive_radius,
        )
        assert new.margin <= old.margin < float(np.nextafter(np.float32(new.margin), np.float32(np.inf)))
    assert [replace(facts, rows_sha256=None) for facts in after.attacks] == list(before.attacks)
    assert published_runs(packed.parent)[0].statistics == published_runs(published.parent)[0].statistics


def test_a_folder_that_is_not_packed_is_read_as_it_is(published: Path) -> None:
    with unpacked(published) as folder:
        assert folder == published


def test_packing_twice_is_refused(packed: Path) -> None:
    with pytest.raises(BronetError, match="must not be packed already"):
        pack(packed)


@pytest.mark.parametrize("name", ["certificate", "certificate-train", ATTACK])
def test_rows_that_are_not_those_of_the_facts_are_refused(packed: Path, name: str) -> None:
    facts = json.loads((packed / f"{name}.json").read_text())
    (packed / f"{name}.json").write_text(json.dumps(facts | {"rows_sha256": "0" * 64}))
    with pytest.raises(BronetError, match=rf"rows that {name}\.json names by hash"), unpacked(packed):
        pass


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_a_damaged_file_is_refused_in_one_line(packed: Path, content: bytes | None) -> None:
    whole = (packed / FILE).read_bytes()
    (packed / FILE).write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(BronetError, match="could not read the packed rows") as error, unpacked(packed):
        pass
    assert "\n" not in str(error.value)


def test_a_folder_without_rows_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(BronetError, match="must hold rows of a certificate"):
        pack(tmp_path)
