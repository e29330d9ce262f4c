"""What a report may look at, the files of one run folder, read and checked.

Nothing is recomputed from weights or images here. `record.json` and `log.jsonl` are optional, because weights may
come from elsewhere; the recipe and the two files of the certificate are not.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from bronet.errors import BronetError
from bronet.files import Json, read_object
from bronet.recipe.schema import parse_budget
from bronet.run.attack_rows import AttackFacts, AttackRow, check_attack, read_attack, read_attack_rows
from bronet.run.certificate import (
    CertificateFile,
    Row,
    Statistics,
    check_rows,
    compute_statistics,
    read_certificate,
    read_certificate_rows,
)
from bronet.run.folder import RunFolder

ADVICE = "train and certify this run first"
TEST_IMAGES = {"digits": 500, "cifar10": 10_000, "cifar100": 10_000, "tiny-imagenet": 10_000, "imagenet": 50_000}
"""Test images of the known data sets."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One run, as its folder tells it; what has no file is empty.

    `folder` is its place as it was given, `rows` are those of the split that was asked for, `train_rows` those of the
    training images, for histograms. `eps` are the radii to count at: those of the certificate, or of all runs compared.
    `closest` is the nearest other answer that an attack found of an image, by the image's index.
    """

    name: str
    folder: Path
    rows: tuple[Row, ...]
    certificate: CertificateFile
    eps: tuple[str, ...]
    recipe: str
    record: Json
    log: tuple[Json, ...]
    train_rows: tuple[Row, ...] = ()
    attacks: tuple[AttackFacts, ...] = ()
    closest: Mapping[int, AttackRow] = field(default_factory=dict)

    @property
    def images(self) -> str:
        """Which images the rows are of, in words: all of a split, or how few."""
        certificate, count = self.certificate, f"{len(self.rows):,}"
        if certificate.split == "sample":
            return f"a sample of {count} test images"
        limited = "--limit" in shlex.split(certificate.command)
        if limited or (certificate.split == "test" and len(self.rows) < TEST_IMAGES.get(certificate.data, 0)):
            return f"the first {count} {certificate.split} images only"
        return f"all {count} {certificate.split} images"

    def class_name(self, label: int) -> str:
        """Return the name of a class; its number where it has none."""
        names = self.certificate.classes
        return names[label] if label < len(names) else str(label)

    @property
    def training_seconds(self) -> float | None:
        """How long the record says that training took; None of a record that was lost or edited."""
        seconds = self.record.get("seconds")
        return seconds if isinstance(seconds, int | float) and 0 <= seconds < math.inf else None

    def naive(self) -> "Evidence":
        """Return the same with the radii of the literature's way in place of the proved ones: not a proof."""
        return replace(self, rows=tuple(replace(row, radius=row.naive_radius) for row in self.rows))

    @cached_property
    def statistics(self) -> Statistics:
        """Accuracies at the radii of `eps`, and the distribution of the radius."""
        return compute_statistics(self.rows, self.eps)

    def by_class(self) -> dict[str, Statistics]:
        """Return the statistics of the images of every class that has any, by its name, in the order of the labels."""
        groups: dict[int, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.label, []).append(row)
        return {self.class_name(label): compute_statistics(rows, self.eps) for label, rows in sorted(groups.items())}


def read_evidence(run: RunFolder | Path, *, split: str = "") -> Evidence:
    """Return the evidence of a run folder; raise `BronetError` where files are missing or contradict each other.

    Without a `split` it is that of the test images: all of them or, where only those were certified, the sample.
    """
    run = run if isinstance(run, RunFolder) else RunFolder(run)
    files = run.certificate(split or run.certified_split())
    certificate = read_certificate(files.facts)
    check_rows(files.rows, certificate)
    rows = read_certificate_rows(files.rows)
    if len(rows) != certificate.images:
        raise BronetError(
            f"{files.rows} must have one row for each of the {certificate.images} images of {files.facts.name}, "
            f"got {len(rows)}; certify again"
        )
    attacks, found = list[AttackFacts](), list[AttackRow]()
    for attack in run.attacks():
        if facts := read_attack(attack.facts):
            check_attack(attack, facts, pixels=certificate.pixels, network=certificate.network)
            attacks.append(facts)
            if facts.split == certificate.split:
                found += [row for row in read_attack_rows(attack.rows) if row.found != row.prediction]
    log = _read_text(run.log).splitlines() if run.log.exists() else []
    train = run.certificate("train").rows
    return Evidence(
        name=run.path.resolve().name,
        folder=run.path,
        rows=tuple(rows),
        certificate=certificate,
        eps=certificate.eps,
        recipe=_read_text(run.recipe_file),
        record=run.read_record(),
        log=tuple(read_object(run.log, text=line, advice=ADVICE) for line in log if line.strip()),
        train_rows=tuple(read_certificate_rows(train)) if train.exists() else (),
        attacks=tuple(attacks),
        closest={row.index: row for row in sorted(found, key=lambda row: row.l2, reverse=True)},
    )


def at_radii(runs: Sequence[Evidence], eps: Sequence[str] = ()) -> list[Evidence]:
    """Return the runs, each at these radii or at those of all: the rows hold every radius."""
    by_value = {parse_budget(text, name="eps"): text for text in eps or (text for run in runs for text in run.eps)}
    return [replace(run, eps=tuple(by_value[value] for value in sorted(by_value))) for run in runs]


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BronetError(f"cannot read {path}: {error}; {ADVICE}") from None
