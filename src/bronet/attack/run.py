"""Attack a trained run: one row per image, and the consistency of attack and certificate enforced.

The float32 network gives gradients, the float64 program judges. On a GPU the search computes in half precision, several
times faster (`bronet.attack.network`); an image that it takes for broken and the judge does not is searched again in
float32. An attack that is stopped goes on where it was. A certified image that is broken stops it for good: then a
bound, a file of rows or this program is wrong, and no report may hide it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor, nn

from bronet.attack.judge import CertificateBrokenError, Verdict, judge
from bronet.attack.network import in_half_precision, padded_to_multiple, recorded_on_gpu
from bronet.attack.search import autoattack, pgd, preflight, require_autoattack
from bronet.certificates.run import Progress, images_hash
from bronet.data import ImageSet, load_images
from bronet.errors import BronetError
from bronet.graph.model import recordable
from bronet.graph.network import ProvedNetwork, prove
from bronet.layers import frozen
from bronet.ortho.products import float32_products
from bronet.recipe.schema import parse_budget
from bronet.records import rows_of, write_rows
from bronet.run.attack_rows import (
    AttackFacts,
    AttackPart,
    AttackPlan,
    AttackRow,
    read_attack,
    read_attack_rows,
    write_attack,
)
from bronet.run.certificate import check_rows, network_hashes, read_certificate, read_certificate_rows
from bronet.run.folder import RunFolder, open_run
from bronet.run.shares import ALONE, Parts, Share, ShareDone
from bronet.run.weights import load_model

PREFLIGHT_IMAGES = 64


@dataclass(frozen=True)
class Target:
    """A trained network, its proof, images, and the radii that its certificate records (by index)."""

    model: nn.Module
    network: ProvedNetwork
    images: ImageSet
    claims: dict[int, float]

    def warnings(self) -> list[str]:
        """Return why an attack on this network could mean nothing."""
        index = torch.arange(min(PREFLIGHT_IMAGES, len(self.images)), device=self.images.labels.device)
        exact = self.images.pixels(index, dtype=torch.float64)
        return preflight(self.model, exact.float(), self.images.labels[index], self.network.certify(exact).prediction)

    def attack(self, plan: AttackPlan, index: Int[Tensor, " b"]) -> list[AttackRow]:
        """Return the rows of these images; the radius claimed is the recorded one, else the one proved now."""
        exact, labels = self.images.pixels(index, dtype=torch.float64), self.images.labels[index]
        proved = self.network.certify(exact)
        verdict = self._worst(plan, exact, labels, first=int(index[0]))
        columns = {
            "index": index,
            "label": labels,
            "prediction": proved.prediction,
            "found": verdict.prediction,
            "robust": (proved.prediction == labels) & (verdict.prediction == labels),
            "l2": verdict.l2,
            "linf": verdict.linf,
            "radius": proved.radius,
        }
        return [replace(row, radius=self.claims.get(row.index, row.radius)) for row in rows_of(AttackRow, columns)]

    def _worst(self, plan: AttackPlan, exact: Tensor, labels: Tensor, *, first: int) -> Verdict:
        """Return the judge's verdict on what was found near the images.

        Rounding to float32 moves an image; the judge measures from the exact one.
        """
        images, eps = exact.float(), parse_budget(plan.eps)
        coarse = self._searched(in_half_precision(self.model))
        found = self._search(coarse, plan, images, labels, first=first)
        with torch.no_grad():
            taken_for_broken = coarse(found).argmax(dim=1) != labels
        verdict = judge(self.network.logits, exact, found, norm=plan.norm, eps=eps)
        misled = taken_for_broken & (verdict.prediction == labels)
        if misled.any():
            fine = self._searched(self.model)
            with float32_products(tf32=False):
                found[misled] = self._search(fine, plan, images[misled], labels[misled], first=first)
            verdict = judge(self.network.logits, exact, found, norm=plan.norm, eps=eps)
        return verdict

    def _search(
        self, model: Callable[[Tensor], Tensor], plan: AttackPlan, images: Tensor, labels: Tensor, *, first: int
    ) -> Tensor:
        norm, eps, seed = plan.norm, parse_budget(plan.eps), plan.seed + first
        if plan.attack == "autoattack":
            return autoattack(model, images, labels, classes=len(self.images.classes), norm=norm, eps=eps, seed=seed)
        generator, steps, restarts = torch.Generator().manual_seed(seed), plan.steps, plan.restarts
        search = pgd(model, images, labels, norm=norm, eps=eps, steps=steps, restarts=restarts, generator=generator)
        return search.images

    def _searched(self, model: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return the model as a search calls it fastest."""
        device = self.images.images.device
        if device.type != "cuda":
            return model
        return padded_to_multiple(recorded_on_gpu(model, device) if recordable(self.model) else model)


@dataclass(frozen=True)
class AttackedRun:
    """What attacking a run gave."""

    rows: list[AttackRow]
    facts: AttackFacts
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
    progress: Progress = lambda _done, _all: None,
    warn: Callable[[str], None] = lambda _line: None,
    share: Share = ALONE,
) -> AttackedRun:
    """Attack the first images of a split and write a row for each; go on from the rows that are there.

    `images` are those of the plan's split, if they are loaded already. An attack that is finished is not repeated, and
    keeps its facts. Raises `CertificateBrokenError`, after writing the row, at the first image whose class changed
    inside its certified radius: the recorded one where the run has a certificate of these images, else one proved now.

    Batches are dealt out over the processes of which `share` is one: each calls this, the first writes the rows of all,
    and the others raise `ShareDone`.
    """
    if plan.attack == "autoattack":
        require_autoattack()
    run = open_run(run)
    recipe = run.recipe
    if images is None:
        images = load_images(recipe.data, plan.split, limit=limit, data_dir=data_dir, classes=run.classes())
    images = images.to(device)
    path, facts_path = plan.files(run.path)
    network = network_hashes(run)
    now = AttackFacts(
        **vars(plan),
        weights_sha256=network["weights_sha256"],
        recipe_sha256=network["recipe_sha256"],
        data=recipe.data.name,
        command=command,
        warnings=(),
        seconds=0.0,
    )
    parts = Parts(path, [plan.__dict__, network, images_hash(images), images.images.device.type], share)
    with parts.collecting():
        rows, facts = ([], now) if overwrite and not share.restarts else _so_far(path, facts_path, now)
        _stop_if_refuted(rows, path)
        left = sorted(set(range(len(images))) - {row.index for row in rows})
        if left:
            model, shape = load_model(run, device=device), recipe.data.spec().shape
            target = Target(model.requires_grad_(False), prove(model, shape), images, _claims(run, plan, images))
            waiting = torch.tensor(left, device=images.labels.device)
            batches = {int(index[0]): index for index in waiting.split(plan.batch_size)}

            def compute(first: int) -> AttackPart:
                return AttackPart(tuple(target.attack(plan, batches[first])))

            with frozen(model):
                if share.is_main:
                    facts = replace(now, warnings=tuple(target.warnings()), seconds=facts.seconds)
                    for line in facts.warnings:
                        warn(line)
                    if not rows:  # those of an earlier attack must never stand beside the facts of this one
                        facts_path.unlink(missing_ok=True)
                        path.unlink(missing_ok=True)
                    write_attack(facts_path, facts)
                start, before = time.perf_counter(), facts.seconds
                for found in parts.results(AttackPart, batches, plan.batch_size, compute):
                    rows = sorted((*rows, *(row for part in found for row in part.rows)), key=lambda row: row.index)
                    facts = replace(facts, seconds=round(before + time.perf_counter() - start, 3))
                    write_rows(AttackRow, path, rows)
                    write_attack(facts_path, facts)
                    _stop_if_refuted(rows, path)
                    progress(len(rows), len(images))
        elif not share.is_main:
            raise ShareDone
        facts = finished(facts, rows, pixels=images.images[0].numel())
        write_attack(facts_path, facts)
    return AttackedRun(rows, facts, path)


def finished(facts: AttackFacts, rows: list[AttackRow], *, pixels: int) -> AttackFacts:
    """Return the facts with clean, empirical and certified accuracy; raise if the last two contradict each other."""
    facts = facts.counted(rows, pixels=pixels)
    robust, certified = facts.robust_accuracy, facts.certified_accuracy
    if robust is None or certified is None or robust < certified:
        raise CertificateBrokenError(
            f"empirical accuracy must be at least the certified one at eps = {facts.eps}, got {robust} robust and "
            f"{certified} certified of {facts.images} images; a bound is false"
        )
    return facts


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


def _so_far(path: Path, facts_path: Path, now: AttackFacts) -> tuple[list[AttackRow], AttackFacts]:
    """Return the rows to go on from, and their facts; raise if they are of another plan or another network.

    Without rows to go on from, the facts are those of now.
    """
    rows, before = read_attack_rows(path), read_attack(facts_path)
    if before is None:
        if rows:
            raise BronetError(f"{path} must have {facts_path.name} beside it to go on from; --overwrite starts anew")
        return rows, now
    for key in (*(field.name for field in fields(AttackPlan)), *now.network):
        earlier, setting = getattr(before, key), getattr(now, key)
        if earlier != setting:
            raise BronetError(f"{path} was made with {key} = {earlier}, now it is {setting}; --overwrite starts anew")
    return rows, before if rows else now


def _stop_if_refuted(rows: list[AttackRow], path: Path) -> None:
    """Raise at the first row that refutes a certificate, and name its image."""
    for row in rows:
        if row.refutes:
            raise CertificateBrokenError(
                f"image {row.index} is certified within {row.radius!r} but changes from class {row.prediction} to "
                f"{row.found} at distance {row.l2!r}: a certificate is false; see {path}"
            )
