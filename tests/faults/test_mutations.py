"""Files changed at random: what a hash covers is refused, and anything else ends in an answer or one line.

A reader has a folder with whole files. One of them is changed by a bit, cut, emptied, lengthened, shuffled, filled from
another file or replaced by something that is no file, and then it is read as commands read it.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from bronet.attack.run import attack_run
from bronet.certificates.run import certify_run
from bronet.certificates.verify import verify_run
from bronet.cli import SYSTEM_REFUSALS
from bronet.data import load_images, open_synthetic
from bronet.data.archive import unpack_archive
from bronet.errors import BronetError
from bronet.pretrained import load_pretrained, save_pretrained
from bronet.recipe import DataRecipe, read_recipe
from bronet.report.evidence import read_evidence
from bronet.run.attack_rows import AttackPlan
from bronet.run.folder import open_run
from bronet.run.weights import load_model
from bronet.training import train_recipe
from bronet.web.picture import read_upload
from generated_images import class_folders, encoded
from lab.publish import publish
from ledger import Tell
from parquet_files import write_parquet

SECONDS = 20
PLAN = AttackPlan(attack="pgd", steps=1, restarts=1, batch_size=10)
PETS = DataRecipe(name="pets", channels=3, height=64, width=64, classes=3)
FOLDER = {**vars(PETS), "name": "folders"}
GENERATED = DataRecipe(**{**vars(PETS), "synthetic": "extra.npz", "synthetic_batch": 1})

pytestmark = pytest.mark.usefixtures("one_thread")


class Reader(NamedTuple):
    """Which files of the prepared folder are changed, and how they are read; `sealed` ones must be refused."""

    files: tuple[str, ...]
    read: Callable[[Path], object]
    sealed: bool = False


@pytest.fixture(scope="module")
def whole(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of every kind that is read."""
    folder = tmp_path_factory.mktemp("whole")
    run = shutil.copytree(trained, folder / "run")
    certify_run(run, limit=20, targeted=True)
    attack_run(run, PLAN, limit=20)
    save_pretrained(run, folder / "network")
    write_parquet(folder / "pets" / "train-0.parquet", [0, 1, 2], names=["ant", "bee", "cat"])
    class_folders(folder / "folders" / "train", ["ant", "bee", "cat"], 1)
    for kind in ("PNG", "JPEG", "GIF", "WEBP"):
        (folder / f"image.{kind.lower()}").write_bytes(encoded(1, kind))
    images = np.zeros((4, 64, 64, 3), dtype=np.uint8)
    np.savez(folder / "extra.npz", image=images, label=np.array([0, 1, 2, 0]))
    (folder / "set").mkdir()
    (folder / "set" / "numbers.bin").write_bytes(random.Random(0).randbytes(5000))
    with tarfile.open(folder / "set.tar.gz", "w:gz") as tar:
        tar.add(folder / "set", arcname="set")
    with zipfile.ZipFile(folder / "set.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / "set" / "numbers.bin", "set/numbers.bin")
    (folder / "md5").write_text(" ".join(hashlib.md5((folder / name).read_bytes()).hexdigest() for name in ARCHIVES))
    shutil.rmtree(folder / "set")
    return folder


KINDS = ("bit", "bit", "byte", "cut", "empty", "longer", "hole", "twice", "other", "number", "folder")
ARCHIVES = ("set.tar.gz", "set.zip")


def _unpack(folder: Path, *, honest: bool) -> None:
    """Unpack both archives under the hashes of the whole ones, or as if the changed ones were official."""
    for name, md5 in zip(ARCHIVES, (folder / "md5").read_text().split(), strict=True):
        wanted = md5 if honest else hashlib.md5((folder / name).read_bytes()).hexdigest()
        shutil.rmtree(folder / "set", ignore_errors=True)
        try:
            unpack_archive(folder / name, folder / "set", md5=wanted, url="https://example.org/set")
        finally:
            assert not list(folder.glob(".set*")), "something half unpacked is left"


def _read_images(folder: Path) -> None:
    load_images(PETS, "train", data_dir=folder)


def _read_folders(folder: Path) -> None:
    load_images(DataRecipe(**FOLDER), "train", data_dir=folder)  # type: ignore[arg-type]


def _read_npz(folder: Path) -> None:
    open_synthetic(GENERATED, ("ant", "bee", "cat"), data_dir=folder)


def _upload(folder: Path) -> None:
    for path in folder.glob("image.*"):
        read_upload(path.read_bytes(), (3, 32, 32))


def _resume(folder: Path) -> None:
    train_recipe(open_run(folder / "run").recipe, folder / "run", resume=True, progress=False)


def _goes_on(folder: Path) -> None:
    attack_run(folder / "run", PLAN, limit=20)


SEALED = ("certificate.json", "certificate.csv", "targeted.csv", "model.safetensors", "recipe.yaml")
NETWORK = ("network/model.safetensors", "network/config.json")
READERS = {
    "certificate": Reader(tuple(f"run/{name}" for name in SEALED), lambda at: verify_run(at / "run"), sealed=True),
    "published network": Reader(NETWORK[:1], lambda at: load_pretrained(at / "network"), sealed=True),
    "official archive": Reader(ARCHIVES, lambda at: _unpack(at, honest=True), sealed=True),
    "hostile archive": Reader(ARCHIVES, lambda at: _unpack(at, honest=False)),
    "configuration": Reader(NETWORK[1:], lambda at: load_pretrained(at / "network")),
    "recipe": Reader(("run/recipe.yaml",), lambda at: read_recipe(at / "run/recipe.yaml", advice="")),
    "weights": Reader(("run/model.safetensors",), lambda at: load_model(open_run(at / "run"))),
    "state": Reader(("run/checkpoint.safetensors", "run/log.jsonl"), _resume),
    "report": Reader(("run/record.json", "run/log.jsonl", "run/certificate.csv"), lambda at: read_evidence(at / "run")),
    "attack": Reader(("run/attack-pgd-l2-36_255.csv", "run/attack-pgd-l2-36_255.json"), _goes_on),
    "publishing": Reader(("run/certificate.csv", "run/record.json"), lambda at: publish(at / "run", at / "results")),
    "parquet": Reader(("pets/train-0.parquet",), _read_images),
    "class folders": Reader(("folders/train/ant/ant_0.png",), _read_folders),
    "npz": Reader(("extra.npz",), _read_npz),
    "upload": Reader(("image.jpeg", "image.gif", "image.webp"), _upload),
}


def mutate(path: Path, draw: random.Random, others: list[Path]) -> None:
    """Change a file at random; what it is afterwards differs from what it was."""
    content = path.read_bytes()
    at = draw.randrange(len(content))
    kind = draw.choice(KINDS if path.suffix != ".png" else (*KINDS, "pipe"))
    if kind in ("folder", "pipe"):
        path.unlink()
        path.mkdir() if kind == "folder" else os.mkfifo(path)
        return
    span = min(len(content) - at, draw.choice([1, 4, 100, 10_000]))
    digits = [index for index, byte in enumerate(content) if 48 <= byte <= 57] or [at]
    spot = draw.choice(digits)
    changed = {
        "bit": content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :],
        "byte": content[:at] + draw.randbytes(span) + content[at + span :],
        "cut": content[:at],
        "empty": b"",
        "longer": content + draw.randbytes(span),
        "hole": content[:at] + bytes(span) + content[at + span :],
        "twice": content[: at + span] + content[at:],
        "other": draw.choice(others).read_bytes(),
        "number": content[:spot] + draw.choice([b"-1", b"1e999", b"9" * 400, b"nan", b"\xff"]) + content[spot + 1 :],
    }[kind]
    path.write_bytes(changed if changed != content else content + b"\0")


def same_json(first: Path, second: Path) -> bool:
    """Whether two files are JSON with the same content: then a space was changed, which no hash needs to cover."""
    if second.suffix != ".json" or not second.is_file():
        return False
    try:
        return bool(json.loads(first.read_bytes()) == json.loads(second.read_bytes()))
    except ValueError:
        return False


@contextmanager
def patience() -> Iterator[None]:
    """Raise in a block that hangs."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(reader: Reader, folder: Path) -> str:
    """Return what is wrong with how a changed file was read; nothing if it was refused in one line, or allowed."""
    try:
        with patience():
            reader.read(folder)
    except BronetError as error:
        return "" if len(str(error).splitlines()) == 1 else f"several lines: {error}"
    except OSError as error:
        return "" if error.errno in SYSTEM_REFUSALS else f"{type(error).__name__}: {error}"
    except Exception as error:  # what a user would see as a traceback
        return f"{type(error).__name__}: {error}"
    return "accepted" if reader.sealed else ""


@pytest.mark.parametrize("tries", [4, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(READERS))
def test_a_changed_file_is_refused_or_read(name: str, tries: int, whole: Path, tmp_path: Path, row: Tell) -> None:
    reader, lost = READERS[name], list[str]()
    others = [path for path in whole.rglob("*") if path.is_file()]
    torch.manual_seed(0)
    for seed in range(tries):
        draw, folder = random.Random(f"{name} {seed}"), tmp_path / "copy"
        shutil.copytree(whole, folder)
        file = draw.choice(reader.files)
        mutate(folder / file, draw, others)
        if (wrong := outcome(reader, folder)) and not same_json(whole / file, folder / file):
            lost.append(f"seed {seed}, {file}: {wrong[:300]}")
        shutil.rmtree(folder)
    what = "refused" if reader.sealed else "refused in one line, or read"
    row(f"file changed at random: {name}; {what}", tries, lost)
