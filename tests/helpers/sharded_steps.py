"""Training steps of a sharded network beside those of the same network in one process.

Run by torchrun as a script, each of two processes prints how far the two are apart, which part it holds of parameters,
gradients and optimiser state, and where a loss breaks that is not finite in one of them.
"""

import json
import sys

import torch
from torch import Tensor

from bronet.cli import exit_at_once
from bronet.layers.execution import DerivedLayer
from bronet.models import CertifiableModel, build_model
from bronet.recipe import Recipe, named_recipe, override
from bronet.training.distributed import Processes, gathered, is_sharded, joined_processes, part_of, shard
from bronet.training.learner import find_bad_layer
from bronet.training.statistics import Tally
from bronet.training.step import TrainingForward, TrainStep

STEPS = 4
BATCH = 8
LIPCONVNET = override(
    named_recipe("cifar100/lipconvnet-5-32"),
    ["model.width=2", "model.activation=householder1", "optim.clip_norm=0.1", "loss.emma=true"],
)
"""The angles of a Householder activation are one row: the second process holds nothing of them."""


def images_and_labels(recipe: Recipe, device: torch.device) -> tuple[Tensor, Tensor]:
    spec, generator = recipe.data.spec(), torch.Generator().manual_seed(0)
    images = torch.rand(BATCH, spec.channels, spec.height, spec.width, generator=generator)
    return images.to(device), torch.randint(spec.classes, (BATCH,), generator=generator).to(device)


def trained(
    recipe: Recipe, processes: Processes, device: torch.device, *, sharded: bool
) -> tuple[CertifiableModel, TrainStep]:
    """Take a few steps: on this process's share of the batch with a sharded network, else on all of it."""
    model = build_model(recipe.model, recipe.data.spec(), device="cpu" if sharded else device).train()
    forward = TrainingForward(model, recipe, in_parallel=False)
    for layer in model.modules():
        if isinstance(layer, DerivedLayer):
            layer.sees_all_parameters = False  # as if sharded: every layer inverts for itself
    if sharded:
        processes.centre(model, over_all=True)
        shard(model, forward, device)
    tally = Tally(eps=0.1, device=device, processes=processes if sharded else Processes())
    step = TrainStep(recipe, model, tally, forward=forward)
    images, labels = images_and_labels(recipe, device)
    if sharded:
        images, labels = images.chunk(processes.world)[processes.rank], labels.chunk(processes.world)[processes.rank]
    for number in range(STEPS):
        step(images, labels, number=number, learning_rate=recipe.optim.lr, emma_eps=0.1)
    assert tally.first_bad_step() is None
    assert tally.total()[3] == STEPS * BATCH  # images
    return model, step


def largest_difference(sharded: dict[str, Tensor], whole: dict[str, Tensor]) -> float:
    """Return the largest difference, relative to the largest number of each tensor; names and shapes are equal."""
    state = gathered(sharded, kept=True)
    assert {name: t.shape for name, t in state.items()} == {name: t.shape for name, t in whole.items()}
    found = [(state[n].cpu() - t.cpu()).abs().max() / t.cpu().abs().max().clamp_min(1e-6) for n, t in whole.items()]
    return float(torch.stack(found).max())


def shares(model: CertifiableModel, step: TrainStep) -> list[float]:
    """Return which part of parameters, gradients and optimiser state this process holds."""
    whole = sum(p.numel() for p in model.parameters())
    assert all(is_sharded(p) for p in model.parameters())
    states = [t for name, t in step.optimizer.tensors().items() if name.endswith(("momentum", "exp_avg"))]
    return [
        sum(part_of(p).numel() for p in model.parameters()) / whole,
        sum(part_of(p.grad).numel() for p in model.parameters() if p.grad is not None) / whole,
        sum(part_of(t).numel() for t in states) / whole,
    ]


def where_it_breaks(model: CertifiableModel, processes: Processes, recipe: Recipe) -> str:
    """Spoil the images of one process only, and return where all say that it breaks."""
    images, _ = images_and_labels(recipe, torch.device("cpu"))
    if processes.rank == 1:
        images = images * torch.nan
    processes.centre(model, over_all=False)
    return find_bad_layer(model, lambda: model(images).square().mean(), processes)


def main() -> None:
    with joined_processes(torch.device("cpu")) as (processes, device):
        assert processes.world == 2
        sharded, ours = trained(LIPCONVNET, processes, device, sharded=True)
        whole, theirs = trained(LIPCONVNET, Processes(), device, sharded=False)
        report = {
            "difference": largest_difference(sharded.state_dict(), whole.state_dict()),
            "optimizer difference": largest_difference(ours.optimizer.tensors(), theirs.optimizer.tensors()),
            "shares": shares(sharded, ours),
            "breaks": where_it_breaks(sharded, processes, LIPCONVNET),
        }
        sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
    exit_at_once(0)
