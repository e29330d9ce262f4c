"""Attack a trained run: one row per image, and the consistency of attack and certificate enforced.

An attack that is stopped goes on where it was. A certified image that is broken stops it for good: then a bound, a file
of rows or this program is wrong, and no report may hide it.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from bronet.attack.auto import require_autoattack
from bronet.attack.judge import CertificateBrokenError
from bronet.attack.target import AttackPlan, Target
from bronet.certificates.network import prove
from bronet.certificates.run import images_hash
from bronet.data import ImageSet, load_images
from bronet.errors import BronetError
from bronet.files import Json
from bronet.layers import frozen
from bronet.radius import implied_radius
from bronet.recipe.schema import parse_budget
from bronet.run.attack_rows import (
    AttackRow,
    count_rows,
    read_attack_rows,
    read_facts,
    write_attack_rows,
    write_facts,
)
from bronet.run.certificate import check_rows, network_hashes, read_certificate
from bronet.run.folder import RunFolder, open_run
from bronet.run.rows import read_certificate_rows
from bronet.run.weights import load_model

Progress = Callable[[int, int], None]
"""Called with the number of images that are attacked, and of all."""


@dataclass(frozen=True)
class AttackedRun:
    """What attacking a run gave."""

    rows: list[AttackRow]
    facts: Json
    path: Path


def attack_run(
    run: RunFolder | Path | str,
    plan: AttackPlan,
    *,
    images: ImageSet | None = None,
    limit: int | None = None,
    overwrite: bool = False,
    device: torch.device | str = "cpu",
    data_dir: Path | str | None = None,
    command: str = "",
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> AttackedRun:
    """Attack the first images of a split and write a row for each; go on from the rows that are there.

    `images` are those of the plan's split, if they are loaded already.

    An attack that is finished is not repeated, and keeps its facts. Raises `CertificateBrokenError`, after writing the
    row, at the first image whose class changed inside its certified radius: the recorded one where the run has a
    certificate of these images, else one proved now.
    """
    if plan.attack == "autoattack":
        require_autoattack()
    run = open_run(run)
    recipe = run.recipe
    if images is None:
        images = load_images(recipe.data, plan.split, limit=limit, data_dir=data_dir, classes=run.classes())
    images = images.to(device)
    path, facts_path = run.path / f"{plan.name}.csv", run.path / f"{plan.name}.json"
    settings: Json = {**plan.__dict__, **network_hashes(run)}
    rows, facts = ([], {}) if overwrite else _so_far(path, facts_path, settings)
    _stop_if_refuted(rows, path)
    done = {row.index for row in rows}
    waiting = [i for i in range(len(images)) if i not in done]
    if waiting:
        model = load_model(run, device=device)
        target = Target(model.requires_grad_(False), prove(model), images, _claims(run, plan, images))
        earlier, start = _seconds_of(facts), time.perf_counter()
        with frozen(model):
            warnings = target.warnings()
            for line in warnings:
                if warn is not None:
                    warn(line)
            facts = {**settings, "data": recipe.data.name, "command": command, "warnings": warnings, "seconds": earlier}
            if not rows:  # those of an earlier attack must never stand beside the facts of this one
                facts_path.unlink(missing_ok=True)
                path.unlink(missing_ok=True)
            write_facts(facts_path, facts)
            for index in torch.tensor(waiting).split(plan.batch_size):
                rows = sorted([*rows, *target.attack(plan, index)], key=lambda row: row.index)
                write_attack_rows(path, rows)
                facts["seconds"] = round(earlier + time.perf_counter() - start, 3)
                write_facts(facts_path, facts)
                _stop_if_refuted(rows, path)
                if progress is not None:
                    progress(len(rows), len(images))
    facts |= summary(rows, plan, pixels=images.images[0].numel())
    write_facts(facts_path, facts)
    return AttackedRun(rows, facts, path)


def summary(rows: list[AttackRow], plan: AttackPlan, *, pixels: int) -> dict[str, float]:
    """Return clean, empirical and certified accuracy of the attacked images; raise if the last two contradict."""
    eps = parse_budget(plan.eps)
    counts = count_rows(rows, certifies=lambda radius: implied_radius(radius, norm=plan.norm, pixels=pixels) > eps)
    if counts.certified is not None and counts.robust < counts.certified:
        raise CertificateBrokenError(
            f"empirical accuracy must be at least the certified one at eps = {plan.eps}, got {counts.robust} robust "
            f"and {counts.certified} certified of {counts.images} images; a bound is false"
        )
    return counts.facts()


def _claims(run: RunFolder, plan: AttackPlan, images: ImageSet) -> dict[int, float]:
    """Return the recorded radius of each image, if the run has a certificate of this split and this network."""
    files = run.certificate(plan.split)
    if not files.facts.exists():
        return {}
    certificate = read_certificate(files.facts)
    if certificate.split != plan.split or certificate.network != network_hashes(run):
        return {}
    if certificate.images == len(images) and certificate.images_sha256 != images_hash(images):
        raise BronetError("the images must be those of the certificate, but their bytes differ; certify again")
    check_rows(files.rows, certificate)
    return {row.index: row.radius for row in read_certificate_rows(files.rows)}


def _so_far(path: Path, facts_path: Path, settings: Json) -> tuple[list[AttackRow], Json]:
    """Return the rows to go on from, and their facts; raise if they are of another plan or another network."""
    rows, before = read_attack_rows(path), read_facts(facts_path)
    if rows and not before:
        raise BronetError(f"{path} must have {facts_path.name} beside it to go on from; --overwrite starts anew")
    for key, value in settings.items():
        if before and before.get(key) != value:
            raise BronetError(
                f"{path} was made with {key} = {before.get(key)}, now it is {value}; --overwrite starts anew"
            )
    return rows, before if rows else {}


def _seconds_of(facts: Json) -> float:
    """Return what the rows that are there have taken, as far as it was written down."""
    seconds = facts.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < math.inf else 0.0


def _stop_if_refuted(rows: list[AttackRow], path: Path) -> None:
    """Raise at the first row that refutes a certificate, and name its image."""
    for row in rows:
        if row.refutes:
            raise CertificateBrokenError(
                f"image {row.index} is certified within {row.radius!r} but changes from class {row.prediction} to "
                f"{row.found} at distance {row.l2!r}: a certificate is false; see {path}"
            )
