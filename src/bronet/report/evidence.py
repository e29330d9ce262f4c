"""What a report may look at: the files of one run folder, read and checked.

Nothing is recomputed from weights or images here. `record.json` and `log.jsonl` are optional, because weights may
come from elsewhere; the recipe and the two files of the certificate are not.
"""

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path

from bronet.errors import BronetError
from bronet.files import Json, parse_object, read_object, shown
from bronet.report.attack_facts import check_attack
from bronet.run.rows import Row, read_rows

ADVICE = "train and certify this run first"


@dataclass(frozen=True, kw_only=True)
class LayerBound:
    """The proved Lipschitz bound of one layer, and how much of its input's norm its rounding can add."""

    name: str
    kind: str
    lipschitz: float
    rounding_gain: float
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The content of certificate.json."""

    data: str
    split: str
    images: int
    eps: tuple[str, ...]
    lipschitz: float
    layers: tuple[LayerBound, ...]
    rounding_worst: float
    precision: str
    seconds: float
    command: str
    weights_sha256: str
    rows_sha256: str
    classes: tuple[str, ...]
    pixels: int | None
    soundness_cost: float | None
    recipe_sha256: str = ""
    device: str = ""

    @property
    def network(self) -> dict[str, str]:
        """The hashes that tell which network was certified, as far as they were written down."""
        hashes = {"weights_sha256": self.weights_sha256, "recipe_sha256": self.recipe_sha256}
        return {key: value for key, value in hashes.items() if value}


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One run, as its folder tells it; what has no file is empty.

    `rows` are those of the split that was asked for, `train_rows` those of the training images, for histograms.
    """

    name: str
    rows: tuple[Row, ...]
    certificate: Certificate
    recipe: str
    record: Json
    log: tuple[Json, ...]
    train_rows: tuple[Row, ...] = ()
    attacks: tuple[Json, ...] = ()

    @property
    def training_seconds(self) -> float | None:
        """How long the record says that training took; None of a record that was lost or edited."""
        seconds = self.record.get("seconds")
        return seconds if isinstance(seconds, int | float) and 0 <= seconds < math.inf else None

    def naive(self) -> "Evidence":
        """Return the same with the radii of the literature's way in place of the proved ones: not a proof."""
        return replace(self, rows=tuple(replace(row, radius=row.naive_radius) for row in self.rows))


def read_evidence(run_dir: Path, *, split: str = "") -> Evidence:
    """Return the evidence of a run folder; raise `BronetError` where files are missing or contradict each other.

    Without a `split` it is that of the test images: all of them or, where only those were certified, the sample.
    """
    if not split:
        only_sample = (run_dir / "certificate-sample.json").exists() and not (run_dir / "certificate.json").exists()
        split = "sample" if only_sample else "test"
    name = "certificate" if split == "test" else f"certificate-{split}"
    certificate = _read_certificate(run_dir / f"{name}.json")
    rows = read_rows(run_dir / f"{name}.csv")
    found = hashlib.sha256((run_dir / f"{name}.csv").read_bytes()).hexdigest()
    if certificate.rows_sha256 not in ("", found):  # changed by hand, or certifying ended between the two files
        raise BronetError(f"{run_dir / name}.csv must be the rows that {name}.json names by hash; certify again")
    train = run_dir / "certificate-train.csv"
    if not rows or len(rows) != certificate.images:
        raise BronetError(
            f"{run_dir / name}.csv must have one row for each of the {certificate.images} images of "
            f"{name}.json and at least one, got {len(rows)}; certify again"
        )
    return Evidence(
        name=run_dir.resolve().name,
        rows=tuple(rows),
        certificate=certificate,
        recipe=_read_text(run_dir / "recipe.yaml"),
        record=_read_object(run_dir / "record.json", optional=True),
        log=_read_log(run_dir / "log.jsonl"),
        train_rows=tuple(read_rows(train)) if train.exists() else (),
        attacks=tuple(_read_attack(path, certificate) for path in sorted(run_dir.glob("attack-*.json"))),
    )


def _read_attack(path: Path, certificate: Certificate) -> Json:
    facts = _read_object(path)
    check_attack(path, facts, pixels=certificate.pixels, network=certificate.network)
    return facts


def _read_certificate(path: Path) -> Certificate:
    content = _Fields(path, "", _read_object(path))
    layers = (_Fields(path, f"layers[{number}].", entry) for number, entry in enumerate(content.objects("layers")))
    return Certificate(
        data=content.text("data"),
        split=content.text("split"),
        images=content.count("images"),
        eps=content.texts("eps"),
        lipschitz=content.number("lipschitz"),
        layers=tuple(
            LayerBound(
                name=layer.text("name"),
                kind=layer.text("kind"),
                lipschitz=layer.number("lipschitz"),
                rounding_gain=layer.number("rounding_gain"),
                remark=layer.text("remark") if "remark" in layer.content else "",
            )
            for layer in layers
        ),
        rounding_worst=_Fields(path, "rounding.", content.value("rounding")).number("worst"),
        precision=content.text("precision"),
        seconds=content.number("seconds"),
        command=content.text("command"),
        weights_sha256=content.text("weights_sha256"),
        rows_sha256=content.text("rows_sha256") if "rows_sha256" in content.content else "",
        classes=content.texts("classes") if "classes" in content.content else (),
        pixels=content.count("pixels") if "pixels" in content.content else None,
        soundness_cost=_soundness_cost(content),
        recipe_sha256=content.text("recipe_sha256") if "recipe_sha256" in content.content else "",
        device=content.text("device") if "device" in content.content else "",
    )


def _soundness_cost(content: "_Fields") -> float | None:
    """Return the median share of the naive radius that the proof cost; None where it was not recorded."""
    cost = content.content.get("soundness_cost")
    value = cost.get("relative_median") if isinstance(cost, dict) else None
    return float(value) if isinstance(value, int | float) else None


class _Fields:
    """Reads the values of a JSON object, and names file and key of one that is not what it should be."""

    def __init__(self, path: Path, prefix: str, content: object) -> None:
        if not isinstance(content, dict):
            raise BronetError(f"{path}: {prefix.rstrip('.')} must be an object, got {shown(content)}; certify again")
        self.path, self.prefix, self.content = path, prefix, content

    def value(self, key: str) -> object:
        if key not in self.content:
            raise BronetError(f"{self.path}: {self.prefix}{key} is missing; certify again")
        return self.content[key]

    def number(self, key: str) -> float:
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise self._wrong(key, "a number", value)
        return float(value)

    def count(self, key: str) -> int:
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(key, "a whole number of at least 0", value)
        return value

    def text(self, key: str) -> str:
        value = self.value(key)
        if not isinstance(value, str):
            raise self._wrong(key, "a text", value)
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.value(key)
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise self._wrong(key, 'a list of texts such as "36/255"', value)
        return tuple(value)

    def objects(self, key: str) -> list[object]:
        value = self.value(key)
        if not isinstance(value, list):
            raise self._wrong(key, "a list", value)
        return value

    def _wrong(self, key: str, wanted: str, value: object) -> BronetError:
        return BronetError(f"{self.path}: {self.prefix}{key} must be {wanted}, got {shown(value)}; certify again")


def _read_object(path: Path, *, optional: bool = False) -> Json:
    if optional and not path.exists():
        return {}
    return read_object(path, advice=ADVICE)


def _read_log(path: Path) -> tuple[Json, ...]:
    if not path.exists():
        return ()
    return tuple(parse_object(line, path, advice=ADVICE) for line in _read_text(path).splitlines() if line.strip())


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BronetError(f"cannot read {path}: {error}; {ADVICE}") from None
