"""The plan of an attack, one row per attacked image, and its facts: files that a stopped attack goes on from.

Rows are written in whole batches, each time the whole file at once. Numbers come back with the same bits.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bronet.errors import BronetError
from bronet.files import Json, read_object, write_object
from bronet.radius import implied_radius
from bronet.recipe.schema import check_seed, parse_budget
from bronet.records import as_plain, read_record, read_rows, require_at_least, require_range
from bronet.run.folder import AttackFiles

AttackName = Literal["autoattack", "pgd"]
Norm = Literal["l2", "linf"]

ADVICE = "attack again with --overwrite"


@dataclass(frozen=True, kw_only=True)
class AttackRow:
    """What an attack found at one image, as the float64 program judges it.

    `found` is the class at the attack's point, at most `l2` and `linf` away; `robust` says that the image is correct
    and stayed so. `radius` is the certified l2 radius of the prediction.
    """

    index: int
    label: int
    prediction: int
    found: int
    robust: bool
    l2: float
    linf: float
    radius: float

    def __post_init__(self) -> None:
        require_at_least(0, self, "index", "label", "prediction", "found", "l2", "linf", "radius")
        if self.robust != (self.label == self.prediction == self.found):
            raise BronetError(f"robust must be {int(not self.robust)}, got {int(self.robust)}")

    @property
    def refutes(self) -> bool:
        """Whether the row refutes a certificate: another class at an l2 distance below the certified radius."""
        return self.found != self.prediction and self.l2 < self.radius


@dataclass(frozen=True)
class AttackPart:
    """The rows of a batch, on their way to the process that writes those of all."""

    rows: tuple[AttackRow, ...]


@dataclass(frozen=True, kw_only=True)
class AttackPlan:
    """What to attack with; an attack goes on only under the same plan."""

    attack: AttackName = "autoattack"
    norm: Norm = "l2"
    eps: str = "36/255"
    split: str = "test"
    steps: int = 100
    restarts: int = 5
    seed: int = 0
    batch_size: int = 250

    def __post_init__(self) -> None:
        if not parse_budget(self.eps, name="eps") > 0:
            raise BronetError(f"eps must be positive to attack, got {self.eps}")
        require_at_least(1, self, "batch_size")
        check_seed(self.seed)

    def files(self, folder: Path) -> AttackFiles:
        """Return the files of this attack in the folder of a run; nothing is touched."""
        stem = f"attack-{self.attack}-{self.norm}-{self.eps.replace('/', '_')}"
        return AttackFiles(rows=folder / f"{stem}.csv", facts=folder / f"{stem}.json")


@dataclass(frozen=True, kw_only=True)
class AttackFacts(AttackPlan):
    """What was attacked, and with what; what a finished attack gave, in shares of the images, is None until then.

    `rows_sha256` is the hash of the rows, where the facts are kept apart from them.
    """

    weights_sha256: str
    recipe_sha256: str | None = None
    data: str
    command: str
    warnings: tuple[str, ...]
    seconds: float
    images: int | None = None
    clean_accuracy: float | None = None
    robust_accuracy: float | None = None
    certified_broken: int | None = None
    certified_accuracy: float | None = None
    rows_sha256: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range("seconds", self.seconds, 0, sys.float_info.max)

    @property
    def finished(self) -> bool:
        """Whether all images were attacked."""
        return self.images is not None and self.robust_accuracy is not None

    @property
    def network(self) -> dict[str, str]:
        """The hashes that tell which network was attacked."""
        return {"weights_sha256": self.weights_sha256, "recipe_sha256": self.recipe_sha256 or ""}

    def plain(self) -> Json:
        """Return the facts as JSON, without what is not known yet."""
        return as_plain(self, sparse=True)

    def counted(self, rows: Sequence[AttackRow], *, pixels: int) -> "AttackFacts":
        """Return the facts of a finished attack with these rows, of images of so many pixels.

        Certified are the correct images whose l2 radius covers the attack's ball, in whatever norm.
        """
        correct = [row for row in rows if row.prediction == row.label]
        eps = parse_budget(self.eps)
        certified = sum(implied_radius(row.radius, norm=self.norm, pixels=pixels) > eps for row in correct)
        return replace(
            self,
            images=len(rows),
            clean_accuracy=len(correct) / len(rows),
            robust_accuracy=sum(row.robust for row in rows) / len(rows),
            certified_broken=sum(row.refutes for row in rows),
            certified_accuracy=certified / len(rows),
        )


def read_attack_rows(path: Path) -> list[AttackRow]:
    """Return the rows of a CSV file; none if there is no such file."""
    return read_rows(AttackRow, path, advice=ADVICE, unique="index") if path.exists() else []


def read_attack(path: Path) -> AttackFacts | None:
    """Return the facts of an attack; None if there is no such file."""
    if not path.exists():
        return None
    return read_record(AttackFacts, read_object(path, advice=ADVICE), "attack", file=path, advice=ADVICE)


def write_attack(path: Path, facts: AttackFacts) -> None:
    """Write the facts, replacing earlier ones."""
    write_object(path, facts.plain())


def check_attack(files: AttackFiles, facts: AttackFacts, *, pixels: int, network: Mapping[str, str]) -> None:
    """Raise unless a finished attack's facts are those of the rows beside them, and its name is that of its file.

    `network` are the hashes of the certified one: an attack on another must not stand beside its certificate. A file
    without rows is taken at its word.
    """
    rows = read_attack_rows(files.rows)
    if not facts.finished or not rows:
        return
    path = files.facts
    if facts.files(path.parent).facts != path:
        raise BronetError(f"{path} must be named after its attack, got {facts.attack} {facts.norm} {facts.eps}")
    told = facts.plain()
    for key, certified in network.items():
        if told.get(key, certified) != certified:
            raise BronetError(f"{path} must be of the network that was certified, but {key} differs; attack again")
    for key, value in facts.counted(rows, pixels=pixels).plain().items():
        if told.get(key) != value:
            raise BronetError(f"{path}: {key} must be that of its rows, {value!r}, got {told.get(key)!r}; {ADVICE}")
