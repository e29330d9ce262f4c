"""A certificate that was edited and sealed again, as a liar can: refused, or still true of every row.

Mutations are drawn from seeds; the slow suite (`make hostile`) tries more than a thousand, the quick one a few.
"""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bronet import BronetError, prove
from bronet.certificates.run import certify_run
from bronet.certificates.verify import verify_run
from bronet.data import load_images
from bronet.files import sealed
from bronet.records import write_rows
from bronet.report.evidence import read_evidence
from bronet.run.certificate import Row, file_hash, read_certificate_rows, recorded
from bronet.run.folder import open_run
from bronet.run.weights import load_model
from certificates import edit_certificate
from tiny_run import train_tiny_run

IMAGES = 12
SEEDS = {"few": range(6), "many": range(6, 400)}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = train_tiny_run(tmp_path_factory.mktemp("hostile") / "run")
    certify_run(folder, eps=("1/4",), limit=IMAGES)
    return folder


@pytest.fixture
def copy(certified: Path, tmp_path: Path) -> Path:
    return shutil.copytree(certified, tmp_path / "run")


@pytest.mark.parametrize(
    "radius", [0.0, 5e-324, 1e-9, 1e-7, 0.25, 1 / 3, 36 / 255, 1.0, 12345.678, 1e9, 1e300, float("inf")]
)
def test_a_recorded_radius_is_below_the_proved_one_and_close_to_it(radius: float) -> None:
    assert recorded(radius) < radius or recorded(radius) == radius in (0.0, float("inf"))
    assert radius in (float("inf"), 0.0) or radius - recorded(radius) <= 2.1e-7 + radius * 2.0**-23


def test_a_radius_above_its_proof_by_rounding_is_refused(copy: Path) -> None:
    """Relative 9e-10, which an earlier verification let pass as a difference of machines."""
    run = open_run(copy)
    images = load_images(run.recipe.data, "test", limit=IMAGES)
    proved = prove(load_model(run)).certify(images.pixels(torch.arange(IMAGES), dtype=torch.float64)).radius.tolist()
    index = max(range(IMAGES), key=lambda i: proved[i])
    rows = read_certificate_rows(copy / "certificate.csv")
    rows[index] = replace(rows[index], radius=proved[index] * (1 + 9e-10))
    write_rows(Row, copy / "certificate.csv", rows)
    edit_certificate(copy / "certificate.json", rows_sha256=file_hash(copy / "certificate.csv"))
    with pytest.raises(BronetError, match=f"radius of image {index} differs"):
        verify_run(copy)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("pixels", 1, "data differs"),
        ("data", "cifar10", "data differs"),
        ("classes", ["cat", "dog", *"23456789"], "data differs"),
        ("images", 11, "images of digits differs"),
        ("precision", "float32", "data differs"),
        ("rounding", {"worst": 0.0, "median": None}, "worst of rounding differs"),
        (
            "soundness_cost",
            {"median": 0.0, "worst": 0.0, "relative_median": 0.0, "relative_worst": 0.0},
            "cost differs",
        ),
        ("lipschitz", 1.0, "lipschitz differs"),
        ("eps", ["nothing"], "eps must be"),
        ("proved_by", "somebody", "unknown certificate key proved_by"),
    ],
)
def test_every_fact_is_computed_again(copy: Path, key: str, value: object, named: str) -> None:
    edit_certificate(copy / "certificate.json", **{key: value})
    with pytest.raises(BronetError, match=named):
        verify_run(copy)


@pytest.mark.parametrize(
    ("key", "value"),
    [("kind", "Proof"), ("name", "other"), ("remark", "sound"), ("lipschitz", 0.5), ("rounding_gain", 0)],
)
def test_every_entry_of_a_layer_is_computed_again(copy: Path, key: str, value: object) -> None:
    layers = json.loads((copy / "certificate.json").read_text())["layers"]
    layers[1][key] = value
    edit_certificate(copy / "certificate.json", layers=layers)
    with pytest.raises(BronetError, match="differs"):
        verify_run(copy)


def test_targeted_radii_that_no_certificate_names_are_refused(copy: Path) -> None:
    (copy / "targeted.csv").write_text("index,prediction,class_0\n0,0,9999.0\n")
    with pytest.raises(BronetError, match=r"targeted\.csv differs"):
        verify_run(copy)


def _nudged(number: float, draw: random.Random) -> float:
    return draw.choice([number * (1 + 10 ** draw.uniform(-9, 0)), number + 10 ** draw.uniform(-6, 3), -number, 1e308])


def _forge_row(folder: Path, draw: random.Random) -> None:
    path = folder / "certificate.csv"
    lines = [line.split(",") for line in path.read_text().splitlines()]
    line, column = draw.randrange(1, len(lines)), draw.randrange(len(lines[0]))
    number = _nudged(float(lines[line][column]), draw)
    lines[line][column] = str(round(number)) if column < 4 else repr(number)
    path.write_text("".join(",".join(cells) + "\n" for cells in lines))
    edit_certificate(folder / "certificate.json", rows_sha256=file_hash(path))


def _forge_fact(folder: Path, draw: random.Random) -> None:
    path = folder / "certificate.json"
    content = json.loads(path.read_text())
    table = draw.choice([content, draw.choice(content["layers"]), content["rounding"], content["soundness_cost"]])
    key = draw.choice([key for key in table if key not in ("device", "seconds", "command", "eps", "layers")])
    value = table[key]
    table[key] = _nudged(value, draw) if isinstance(value, float) else draw.choice([None, "x", 0, [], {}, -1])
    path.write_text(json.dumps(sealed(content)))


def _forge_weights(folder: Path, draw: random.Random) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    edit_certificate(folder / "certificate.json", weights_sha256=file_hash(path))


def _still_true(folder: Path) -> bool:
    """Whether every row is at most what is proved of the network that is there, by a proof that trusts no file."""
    run = open_run(folder)
    images = load_images(run.recipe.data, "test", limit=IMAGES)
    proved = prove(load_model(run)).certify(images.pixels(torch.arange(IMAGES), dtype=torch.float64))
    rows = read_certificate_rows(folder / "certificate.csv")
    told = [(row.prediction, row.label) for row in rows]
    return told == list(zip(proved.prediction.tolist(), images.labels.tolist(), strict=True)) and all(
        row.radius <= radius for row, radius in zip(rows, proved.radius.tolist(), strict=True)
    )


FORGERS: dict[str, Callable[[Path, random.Random], None]] = {
    "row": _forge_row,
    "fact": _forge_fact,
    "weights": _forge_weights,
}


@pytest.mark.parametrize("batch", ["few", pytest.param("many", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", FORGERS)
def test_what_was_forged_and_sealed_again_is_refused_or_true(
    kind: str, batch: str, certified: Path, copy: Path
) -> None:
    refused = true = 0
    for seed in SEEDS[batch]:
        for name in ("certificate.csv", "certificate.json", "model.safetensors"):
            shutil.copyfile(certified / name, copy / name)
        draw = random.Random(f"{kind} {seed}")
        FORGERS[kind](copy, draw)
        try:
            read_evidence(copy)
            verify_run(copy)
        except BronetError as error:
            refused += "\n" not in str(error)
        else:
            assert _still_true(copy), f"{kind} {seed}"
            true += 1
    print(f"tampered {kind}: {refused + true} forged, {refused} refused, {true} true as they stand, 0 false accepted")
    assert refused > true
