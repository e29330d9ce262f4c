"""Check a certificate: that no byte of what it speaks of has changed, and that its claims come out again.

Everything is recomputed from the weights and the images, in other batches than when it was made. A recorded radius is
confirmed if the recomputed one is no smaller, up to the rounding of another machine.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from bronet.certificates.network import ProvedNetwork, prove
from bronet.certificates.run import CertificateFiles, load_model
from bronet.certificates.targeted import Targeted, read_targeted
from bronet.data import load_images
from bronet.errors import BronetError
from bronet.files import Json, read_object, shown
from bronet.run.certificate import SEAL, file_hash, images_hash, sealed
from bronet.run.folder import open_run
from bronet.run.rows import Row, read_rows

BATCH_SIZE = 97
"""Other than the default of `certify_run`, so that sums are taken in another order."""
RELATIVE = 1e-9
ABSOLUTE = 1e-12
"""Other processors round the same program differently, by far less than this."""
_KINDS: dict[str, tuple[type, ...]] = {"split": (str,), "images": (int,), "lipschitz": (float, int), SEAL: (str,)}


@dataclass(frozen=True)
class Verification:
    """What was confirmed."""

    images: int
    lipschitz: float
    largest_difference: float


def verify_run(
    path: Path | str,
    *,
    device: torch.device | str = "cpu",
    data_dir: Path | str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Verification:
    """Confirm the certificate of a run folder (of its test images) or of a JSON file, or raise naming what differs."""
    facts_file = _facts_file(Path(path))
    facts, run = read_certificate(facts_file), open_run(facts_file.parent)
    files = CertificateFiles.of(run.path, str(facts["split"]))
    _same("name of the certificate", files.facts.name, facts_file.name)
    _same(f"seal of {facts_file.name}", sealed(facts)[SEAL], facts.get(SEAL))
    _same(files.rows.name, file_hash(files.rows), facts.get("rows_sha256"))
    _same("model.safetensors", file_hash(run.weights), facts.get("weights_sha256"))
    _same("recipe.yaml", file_hash(run.recipe_file), facts.get("recipe_sha256"))
    if facts.get("targeted_sha256") is not None:
        _same(files.targeted.name, file_hash(files.targeted), facts["targeted_sha256"])
    recipe = run.recipe()
    split, limit = str(facts["split"]), int(str(facts["images"]))
    images = load_images(recipe.data, split, limit=limit, data_dir=data_dir, classes=run.classes()).to(device)
    _same(f"images of {recipe.data.name}", images_hash(images), facts.get("images_sha256"))

    network = prove(load_model(run, recipe, device=device))
    rows = read_rows(files.rows)
    if [row.index for row in rows] != list(range(len(images))):
        raise BronetError(f"{files.rows} must have one row for each of the {len(images)} images, in order")
    _at_least("lipschitz", network.lipschitz, float(str(facts["lipschitz"])))
    _confirm_layers(facts.get("layers"), network)
    targeted = read_targeted(files.targeted, len(rows)) if facts.get("targeted_sha256") is not None else None
    worst = 0.0
    for index in torch.arange(len(images), device=images.labels.device).split(BATCH_SIZE):
        proved = network.certify(images.pixels(index, dtype=torch.float64))
        columns = (index, images.labels[index], proved.prediction, proved.margin, proved.radius, proved.targeted)
        for number, *values, radii in zip(*(column.tolist() for column in columns), strict=True):
            worst = max(worst, _confirm(rows[number], *values))
            if targeted is not None:
                _confirm_targeted(targeted[number], Targeted(rows[number].prediction, radii), f"image {number}")
        if progress is not None:
            progress(int(index[-1]) + 1)
    return Verification(len(images), network.lipschitz, worst)


def _confirm(row: Row, label: int, prediction: int, margin: float, radius: float) -> float:
    """Raise unless the row says what was recomputed; return how far its radius is off."""
    where = f"image {row.index}"
    _same(f"label of {where}", label, row.label)
    _same(f"prediction of {where}", prediction, row.prediction)
    both_nan = math.isnan(margin) and math.isnan(row.margin)  # of logits that overflow
    if not (abs(margin - row.margin) <= RELATIVE * abs(margin) + ABSOLUTE or margin == row.margin or both_nan):
        raise _differs(f"margin of {where}", margin, row.margin)
    _at_most(f"radius of {where}", radius, row.radius)
    return abs(radius - row.radius)


def _confirm_layers(recorded: object, network: ProvedNetwork) -> None:
    """Raise unless the table of layers names those of the network, and no constant below theirs."""
    table = recorded if isinstance(recorded, list) else []
    bounds = [(entry.get("name"), entry.get("lipschitz")) for entry in table if isinstance(entry, dict)]
    _same("names of the layers", [name for name, _ in network.layers], [name for name, _ in bounds])
    for (name, proved), (_, bound) in zip(network.layers, bounds, strict=True):
        _at_least(f"lipschitz of {name}", proved.lipschitz, bound if isinstance(bound, float | int) else math.nan)


def _confirm_targeted(recorded: Targeted, found: Targeted, where: str) -> None:
    _same(f"prediction beside the targeted radii of {where}", found.prediction, recorded.prediction)
    _same(f"number of classes of {where}", len(found.radii), len(recorded.radii))
    for j, (radius, claimed) in enumerate(zip(found.radii, recorded.radii, strict=True)):
        _at_most(f"radius of {where} towards class {j}", radius, claimed)


def _at_most(what: str, found: float, recorded: float) -> None:
    """Raise if more is recorded than was found, up to the rounding of another machine."""
    if not recorded <= found * (1 + RELATIVE) + ABSOLUTE:
        raise _differs(what, found, recorded)


def _at_least(what: str, found: float, recorded: float) -> None:
    """Raise if less is recorded than was found, up to the rounding of another machine."""
    if not found <= recorded * (1 + RELATIVE) + ABSOLUTE:
        raise _differs(what, found, recorded)


def _same(what: str, found: object, recorded: object) -> None:
    if found != recorded:
        raise _differs(what, found, recorded)


def _differs(what: str, found: object, recorded: object) -> BronetError:
    return BronetError(
        f"the certificate does not hold: {what} differs, found {found}, recorded {recorded}; certify again"
    )


def _facts_file(path: Path) -> Path:
    """Return a certificate's own file; of a run folder, that of the test split or else of the sample."""
    if path.suffix == ".json":
        return path
    test, sample = (CertificateFiles.of(path, split).facts for split in ("test", "sample"))
    return sample if sample.exists() and not test.exists() else test


def read_certificate(path: Path) -> Json:
    """Return the facts of a run folder's certificate, or of the file itself; nothing is checked but their presence."""
    path = _facts_file(path)
    content = read_object(path, advice="run `bronet certify` first")
    for key, kinds in _KINDS.items():
        value = content.get(key)
        if not isinstance(value, kinds) or isinstance(value, bool):
            found = shown(value) if key in content else "nothing"
            raise BronetError(f"{path} must say {key} as {kinds[0].__name__}, got {found}; certify again")
    return content
