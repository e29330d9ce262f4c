"""The training loop for networks of the user's own: any forward that `bronet.check` can follow, no base class.

EMMA and the numbers that are logged need a constant for every pair of classes. It is an estimate along the graph of the
forward: Lipschitz layers give theirs, other layers the bound that was proved when training began, times what their
weight's norm has grown since. No certificate rests on it.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bronet.data.load import recipe_for
from bronet.errors import BronetError
from bronet.graph.model import CertifiableModel, computes_ahead
from bronet.graph.network import constants_of
from bronet.graph.reading import read
from bronet.graph.trace import unwrapped
from bronet.layers.base import LipschitzLayer
from bronet.layers.head import Head
from bronet.proof.proved_map import Join
from bronet.recipe import find_recipe, override
from bronet.recipe.schema import DataRecipe, Recipe
from bronet.run.folder import RunFolder
from bronet.run.own import own_architecture
from bronet.training.run import RunOptions, train_recipe

QUICKSTART = "digits/quickstart"


def train(
    model: nn.Module,
    dataset: str | Path | DataRecipe = "digits",
    recipe: Recipe | str = QUICKSTART,
    *,
    folder: Path | str,
    settings: Sequence[str] = (),
    import_path: str | None = None,
    device: torch.device | str = "cpu",
    data_dir: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    options: RunOptions | None = None,
) -> RunFolder:
    """Train a network of your own in place with the loop of `bronet train`, and return its run.

    The run is that of `save_run`: the commands take it with --model. In Python, functions take it as it is returned.

    Args:
        model: any module whose forward `bronet.check` can follow, with a bound for each operation, that ends with a
            linear layer or a head; it ends in evaluation mode on `device`.
        dataset: a known data set, or a folder with train and test (or val) below it, each with a folder per class.
        recipe: from which loss, optimiser, epochs and augmentation are taken, by its name, file or as an object; its
            network is not, and its augmentation only if it is of this data set.
        folder: of the run.
        settings: changes of the recipe, such as "train.epochs=5" or "loss.emma_eps=1/4".
        import_path: of a class or a function that makes the network without arguments, as for `save_run`.
        device: where to train.
        data_dir: the folder of the data sets.
        resume: go on from the run's checkpoint; give the network with the weights with which training began, so that
            the constants of its estimate are the same.
        overwrite: replace the run in the folder.
        progress: show a bar on a terminal, and lines elsewhere.
        options: how the run is carried out, such as `RunOptions(workers=4)`.
    """
    model, plan = unwrapped(model), recipe if isinstance(recipe, Recipe) else find_recipe(recipe)
    data, _ = recipe_for(dataset)
    data = plan.data if plan.data.name == data.name else data
    plan = replace(plan, name=type(model).__name__, data=data, model=own_architecture(model, import_path))
    plan = override(plan, settings)
    if not plan.train.epochs:
        raise BronetError("train.epochs must be at least 1 to train, got 0")
    learner = Followed(model, plan.data.spec().shape, classes=plan.data.spec().classes)
    run = train_recipe(
        plan,
        folder,
        model=learner,
        device=device,
        data_dir=data_dir,
        resume=resume,
        overwrite=overwrite,
        progress=progress,
        options=options,
    )
    model.eval()
    return replace(run, network=lambda: copy.deepcopy(model))


class Followed(CertifiableModel):
    """A network as the training loop wants it: with an estimate of its constant, along the graph of its forward.

    Its state is that of the network.
    """

    def __init__(self, network: nn.Module, image_shape: tuple[int, ...], *, classes: int) -> None:
        super().__init__(image_shape)
        graph, name, parts = read(network, image_shape), type(network).__name__, dict(network.named_modules())
        for operation in graph.operations:
            if operation.bound is None:
                raise BronetError(f"{name} cannot be trained: {operation}: {operation.reason}")
        if not graph.operations or graph.operations[-1].output_shape != (classes,):
            shape = graph.operations[-1].output_shape if graph.operations else image_shape
            raise BronetError(f"{name} must give {classes} logits, got shape {shape}")
        self.network, self.number_of_classes = network, classes
        self.steps = [_Step(o.inputs, o.proved.join, o.proved.lipschitz, parts.get(o.path)) for o in graph.operations]
        last = self.steps[-1]
        tight = [torch.tensor(constants_of(graph)[value]) for value in last.inputs]
        loose = self._before_last([step.constant for step in self.steps])
        self.tightness = float(_joined(tight, last.join) / loose)

    @computes_ahead
    def forward(self, images: Float[Tensor, "b ..."]) -> Float[Tensor, "b k"]:
        logits: Tensor = self.network(images)
        return logits

    def lipschitz_estimate(self) -> Float[Tensor, ""]:
        return self._before_last([step.estimate() for step in self.steps]) * self.tightness

    def gap_lipschitz(self) -> Float[Tensor, "k k"]:
        last = self.steps[-1]
        if isinstance(last.part, Head):
            return self.lipschitz_estimate() * last.part.gaps()
        if isinstance(last.part, nn.Linear):
            rows = last.part.weight
            return self.lipschitz_estimate() * torch.linalg.vector_norm(rows[:, None] - rows[None], dim=-1)
        others = 1 - torch.eye(self.number_of_classes, device=next(self.parameters()).device)
        return self.lipschitz_estimate() * last.estimate() * math.sqrt(2) * others

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        return self.network.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)

    def _before_last(self, factors: Sequence[Tensor | float]) -> Tensor:
        """Return what is joined before the last operation, where each operation multiplies by its factor."""
        constants = [torch.ones((), device=next(self.parameters()).device)]
        for step, factor in zip(self.steps[:-1], factors[:-1], strict=True):
            constants.append(_joined([constants[value] for value in step.inputs], step.join) * factor)
        return _joined([constants[value] for value in self.steps[-1].inputs], self.steps[-1].join)


class _Step:
    """An operation: the values that it takes, its proved constant when training began, and its layer, if it is one."""

    def __init__(self, inputs: tuple[int, ...], join: Join, constant: float, part: nn.Module | None) -> None:
        self.inputs, self.join, self.constant, self.part = inputs, join, constant, part
        self.is_weighted = isinstance(part, (nn.Linear, nn.modules.conv._ConvNd)) and constant > 0
        self.at_start = float(self._norm().detach()) if self.is_weighted else 1.0

    def estimate(self) -> Tensor | float:
        """Return the constant as training sees it."""
        if isinstance(self.part, LipschitzLayer):
            return self.part.lipschitz_estimate()
        return self.constant * self._norm() / self.at_start if self.is_weighted else self.constant

    def _norm(self) -> Tensor:
        """Return the norm of the weight as a matrix: that of a linear layer, in proportion to that of a convolution."""
        assert self.part is not None
        weight: Tensor = self.part.weight  # type: ignore[assignment]
        return torch.linalg.matrix_norm(weight.flatten(1).float(), 2)


def _joined(constants: Sequence[Tensor], join: Join) -> Tensor:
    stacked = torch.stack(list(constants))
    return stacked.sum() if join is Join.SUM else stacked.square().sum().sqrt()
