"""What a report may look at: the files of one run folder, read and checked.

Nothing is recomputed from weights or images here. `record.json` and `log.jsonl` are optional, because weights may
come from elsewhere; the recipe and the two files of the certificate are not.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from bronet.errors import BronetError
from bronet.files import Json, parse_object, read_object
from bronet.run.attack_rows import AttackFacts, check_attack, read_attack
from bronet.run.certificate import CertificateFile, check_rows, read_certificate
from bronet.run.folder import RunFolder
from bronet.run.rows import Row, read_certificate_rows

ADVICE = "train and certify this run first"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One run, as its folder tells it; what has no file is empty.

    `folder` is its place as it was given, `rows` are those of the split that was asked for, `train_rows` those of the
    training images, for histograms.
    """

    name: str
    folder: Path
    rows: tuple[Row, ...]
    certificate: CertificateFile
    recipe: str
    record: Json
    log: tuple[Json, ...]
    train_rows: tuple[Row, ...] = ()
    attacks: tuple[AttackFacts, ...] = ()

    @property
    def training_seconds(self) -> float | None:
        """How long the record says that training took; None of a record that was lost or edited."""
        seconds = self.record.get("seconds")
        return seconds if isinstance(seconds, int | float) and 0 <= seconds < math.inf else None

    def naive(self) -> "Evidence":
        """Return the same with the radii of the literature's way in place of the proved ones: not a proof."""
        return replace(self, rows=tuple(replace(row, radius=row.naive_radius) for row in self.rows))


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
    train = run.certificate("train").rows
    return Evidence(
        name=run.path.resolve().name,
        folder=run.path,
        rows=tuple(rows),
        certificate=certificate,
        recipe=_read_text(run.recipe_file),
        record=_read_object(run.record, optional=True),
        log=_read_log(run.log),
        train_rows=tuple(read_certificate_rows(train)) if train.exists() else (),
        attacks=tuple(_read_attacks(run, certificate)),
    )


def _read_attacks(run: RunFolder, certificate: CertificateFile) -> Iterator[AttackFacts]:
    """Yield the facts of every attack, checked against its rows and against the certificate."""
    for files in run.attacks():
        facts = read_attack(files.facts)
        if facts is not None:
            check_attack(files, facts, pixels=certificate.pixels, network=certificate.network)
            yield facts


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
