"""The files of a certificate: one row per image, and what was proved of which weights, recipe, images and rows.

Every table and curve is recomputed from the rows; numbers come back with the bits that were written. The facts are
under a seal: a file that was edited afterwards is refused. A hash says that a byte changed, not whether a claim is
true: `bronet.certificates.verify` recomputes as well.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from bronet.errors import BronetError
from bronet.files import Json, read_sealed, sealed
from bronet.radius import certified_at
from bronet.recipe.schema import parse_budget
from bronet.records import as_plain, csv_text, read_csv, read_record, read_rows, require_at_least, require_range
from bronet.run.folder import RunFolder

RECORDED_SHARE = 1 - 2.0**-24
RECORDED_UNITS = 10**7
"""Radii are recorded as whole ten-millionths, at least one below the proof: far more than two machines differ by."""
ADVICE, FIRST = "certify again", "run `bronet certify` first"
_FIRST = ("index", "prediction")


@dataclass(frozen=True, kw_only=True)
class Row:
    """The certificate of one image: `radius` is proved, in pixel space, and recorded with a margin (`recorded`).

    `naive_radius` is what the literature would report, for comparison only: it rests on estimates. `file` is the
    name of the image's file, if it comes from one of its own.
    """

    index: int
    label: int
    prediction: int
    correct: bool
    margin: float
    radius: float
    naive_radius: float
    file: str = ""

    def __post_init__(self) -> None:
        require_at_least(0, self, "index", "label", "prediction", "radius", "naive_radius")
        if self.correct != (self.label == self.prediction):
            raise BronetError(f"correct must be {int(not self.correct)}, got {int(self.correct)}")


class RadiusDistribution(NamedTuple):
    """Table 6, over correctly classified images as in the paper; NaN where undefined (none, equal or infinite radii).

    Variance and skewness are those of the sample as a population, without a correction for its size.
    """

    median: float
    variance: float
    skewness: float


class Statistics(NamedTuple):
    """Everything a table prints about a set of rows: accuracies over all images, the radius over the correct ones.

    `certified` is the share of images proved correct throughout their ball, by its radius as the user wrote it.
    """

    images: int
    correct: int
    clean_accuracy: float
    certified: dict[str, float]
    radius: RadiusDistribution

    @property
    def percents(self) -> list[float]:
        """The accuracies as the paper's tables list them: clean, then each radius, in percent."""
        return [100 * share for share in (self.clean_accuracy, *self.certified.values())]


def compute_statistics(rows: Sequence[Row], eps: Sequence[str]) -> Statistics:
    """Return the statistics of at least one row, certified accuracies in the order of `eps` ("36/255", ...)."""
    if not rows:
        raise BronetError("rows must hold at least one image, got none; certify first")
    correct = sum(row.correct for row in rows)
    return Statistics(
        images=len(rows),
        correct=correct,
        clean_accuracy=correct / len(rows),
        certified={text: certified_accuracy(rows, parse_budget(text, name="eps")) for text in eps},
        radius=radius_distribution(rows),
    )


def certified_accuracy(rows: Sequence[Row], eps: float) -> float:
    """Return the share of rows certified at eps, as `bronet.radius.certified_at` defines it."""
    radius = torch.tensor([row.radius for row in rows], dtype=torch.float64)
    correct = torch.tensor([row.correct for row in rows])
    return int(certified_at(radius, correct, eps).sum()) / len(rows)


def radius_distribution(rows: Sequence[Row]) -> RadiusDistribution:
    """Return median, variance and skewness of the radius over the correctly classified rows."""
    radii = np.array([row.radius for row in rows if row.correct])
    if radii.size == 0:
        return RadiusDistribution(np.nan, np.nan, np.nan)
    median = float(np.median(radii))
    if not np.isfinite(radii).all():
        return RadiusDistribution(median, np.nan, np.nan)
    centred = radii - radii.mean()
    variance = float((centred**2).mean())
    # Equal radii differ from their mean by rounding alone, and have no skewness.
    spread = np.sqrt(variance) > radii.size * np.finfo(np.float64).eps * radii.max()
    skewness = float((centred**3).mean() / variance**1.5) if spread else np.nan
    return RadiusDistribution(median, variance, skewness)


class Targeted(NamedTuple):
    """The proved distance that an image keeps from each class."""

    prediction: int
    radii: list[float]


def read_certificate_rows(path: Path) -> list[Row]:
    """Return the rows of a CSV file; raise `BronetError` naming file and line where one is not a row."""
    return read_rows(Row, path, advice=ADVICE if path.exists() else FIRST, unique="index")


def targeted_table(rows: Sequence[Row], radii: Sequence[Sequence[float]]) -> str:
    """Return targeted radii as CSV text, a line for each image: entry j is the proved distance to class j."""
    header = _targeted_header(len(radii[0]))
    lines = ([row.index, row.prediction, *map(repr, of_row)] for row, of_row in zip(rows, radii, strict=True))
    return csv_text([header, *lines])


def _targeted_header(classes: int) -> list[str]:
    return [*_FIRST, *(f"class_{j}" for j in range(classes))]


def read_targeted(path: Path, images: int) -> list[Targeted]:
    """Return the targeted radii of the first so many images from a CSV file."""
    header, *lines = read_csv(path, advice=ADVICE) or [[]]
    try:
        found = [Targeted(int(cells[1]), [float(cell) for cell in cells[len(_FIRST) :]]) for cells in lines]
        indices = [int(cells[0]) for cells in lines]
    except (ValueError, IndexError) as error:
        raise BronetError(f"cannot read targeted radii from {path} ({error}); {ADVICE}") from None
    if header != (columns := _targeted_header(len(header) - len(_FIRST))):
        raise BronetError(f"{path}, line 1: header must be {','.join(columns)}, got {','.join(header)}; {ADVICE}")
    if indices != list(range(images)) or any(len(line.radii) != len(header) - len(_FIRST) for line in found):
        raise BronetError(f"{path} must have one whole line for each of the {images} images, in order; {ADVICE}")
    return found


@dataclass(frozen=True, kw_only=True)
class LayerBound:
    """The proved Lipschitz bound of one layer, and how much of its input's norm its rounding can add."""

    name: str
    kind: str
    lipschitz: float
    rounding_gain: float
    remark: str = ""

    def __post_init__(self) -> None:
        require_range(f"lipschitz of layer {self.name}", self.lipschitz, 0)
        require_range(f"rounding_gain of layer {self.name}", self.rounding_gain, 0)


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """What rounding took from the margins of the images; the median is None where it was not recorded."""

    worst: float
    median: float | None


@dataclass(frozen=True, kw_only=True)
class SoundnessCost:
    """How much smaller the proved radius is than the naive one, over images with a naive radius; None without any."""

    median: float | None
    worst: float | None
    relative_median: float | None
    relative_worst: float | None


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """Which share of the proved constants gradients of margins reach at the first `images`: medians, no proof.

    Of the layers, in the order of the certificate's; None where what a layer takes goes another way too.
    """

    images: int
    median: float
    layers: tuple[float | None, ...]

    def __post_init__(self) -> None:
        require_range("alignment", self.median, 0)


@dataclass(frozen=True, kw_only=True)
class ProgramFile:
    """An exported file of the program that the certificate speaks of, beside it."""

    name: str
    sha256: str

    def __post_init__(self) -> None:
        if Path(self.name).name != self.name:
            raise BronetError(f"name of a program must be that of a file beside the certificate, got {self.name}")


@dataclass(frozen=True, kw_only=True)
class CertificateFile:
    """The content of certificate.json, in its order; the seal is added where it is written."""

    data: str
    split: str
    images: int
    classes: tuple[str, ...]
    pixels: int
    eps: tuple[str, ...]
    lipschitz: float
    layers: tuple[LayerBound, ...]
    rounding: Rounding
    soundness_cost: SoundnessCost
    precision: str
    device: str
    seconds: float
    command: str
    weights_sha256: str
    recipe_sha256: str
    images_sha256: str
    rows_sha256: str
    targeted_sha256: str | None = None
    programs: tuple[ProgramFile, ...] = ()
    alignment: Alignment | None = None

    def __post_init__(self) -> None:
        require_at_least(1, self, "images", "pixels")
        require_at_least(0, self, "lipschitz", "seconds")

    @property
    def network(self) -> dict[str, str]:
        """The hashes that tell which network was certified."""
        return {"weights_sha256": self.weights_sha256, "recipe_sha256": self.recipe_sha256}

    def sealed(self) -> Json:
        """Return the content as JSON with its seal; what does not apply is left out."""
        return sealed(as_plain(self, sparse=True))


def read_certificate(path: Path) -> CertificateFile:
    """Return the certificate in a file; raise `BronetError` where it cannot be read, is not whole, or was edited."""
    content = read_sealed(path, advice=ADVICE if path.exists() else FIRST)
    return read_record(CertificateFile, content, "certificate", file=path, advice=ADVICE)


def check_rows(path: Path, certificate: CertificateFile) -> None:
    """Raise unless the rows in a file are those that the certificate names by their hash."""
    check_same(str(path), file_hash(path), certificate.rows_sha256)  # certifying may have ended between the two files


def check_same(what: str, found: object, recorded: object) -> None:
    """Raise unless what is recorded in a certificate is what was found."""
    if found != recorded:
        told = f"{what} differs, found {found}, recorded {recorded}"
        raise BronetError(f"the certificate does not hold: {told}; {ADVICE}")


def recorded(radius: float) -> float:
    """Return the radius to write down for a proved one: smaller by its 2^-24th, rounded down, and one unit more.

    So another machine, whose proof differs by rounding, still proves all of it; verification needs no tolerance.
    """
    share = radius * RECORDED_SHARE
    if share * RECORDED_UNITS >= 2.0**52:  # no decimals are left
        return share
    return max(0, math.floor(share * RECORDED_UNITS) - 1) / RECORDED_UNITS


def file_hash(path: Path) -> str:
    """Return the hash of a file's bytes."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise BronetError(f"cannot read {path}: {error.strerror}; train and certify this run first") from None


def network_hashes(run: RunFolder) -> dict[str, str]:
    """Return what says which network a run has: its weights, and the recipe that says what they belong to."""
    return {"weights_sha256": file_hash(run.weights), "recipe_sha256": file_hash(run.recipe_file)}
