"""The same network, the same minutes, every layer: what each makes of an equal budget.

LipConvNet-5-16 on CIFAR-10 (a small BRONet on the digits, whose images LipConvNet cannot halve five times), trained for
the same wall-clock time with the same recipe, then certified: accuracies are proofs in float64. A Lipschitz-regularised
layer is trained with EMMA, which is what regularises it; all others without. One seed: differences of a percent mean
nothing.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from matplotlib.figure import Figure

from bronet.data import ImageSet, load_dataset
from bronet.errors import BronetError
from bronet.graph import prove
from bronet.layers import CONVOLUTIONS
from bronet.models import CertifiableModel, build_model
from bronet.recipe import named_recipe
from bronet.recipe.architecture import Architecture, BRONetArchitecture, LipConvNetArchitecture
from bronet.recipe.schema import Recipe, check_seed, dataset_spec, parse_budget
from lab.bench.layers import first_line
from lab.bench.timed_training import Budget, train_for

ALL_KINDS = tuple(CONVOLUTIONS)
_CIFAR_BATCH = 256
_CERTIFY_BATCH = 250
_BARS = ("#c9d7f5", "#7fa3e8", "#2458c7", "#16357a")


@dataclass(frozen=True)
class Comparison:
    """What is compared: data set, layers, seconds (or steps) of training each, test images, seed."""

    dataset: str = "cifar10"
    kinds: tuple[str, ...] = ALL_KINDS
    budget: Budget = field(default_factory=lambda: Budget(seconds=60))
    images: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        for kind in self.kinds:
            _ = CONVOLUTIONS[kind]  # a word that is not known is refused
        if self.images < 1:
            raise BronetError(f"images must be at least 1, got {self.images}")
        check_seed(self.seed)
        if self.dataset not in ("cifar10", "cifar100", "digits"):
            raise BronetError(f"dataset must be one of cifar10, cifar100, digits, got {self.dataset!r}")


@dataclass(frozen=True)
class BudgetRow:
    """One layer's result; accuracies are shares of the test images, at the recipe's three smallest radii."""

    layer: str
    parameters: int
    steps: int
    epochs: float
    train_seconds: float
    certify_seconds: float
    lipschitz: float
    images: int
    clean: float
    certified_1: float
    certified_2: float
    certified_3: float
    radii: str
    remark: str


@dataclass(frozen=True)
class Failure:
    """A layer that could not be trained or certified, and why."""

    layer: str
    reason: str


def compare(comparison: Comparison, *, device: str, data_dir: str | None = None) -> Iterator[BudgetRow | Failure]:
    """Yield a row for every layer, in turn, as it has been trained and certified; a failure does not stop the rest."""
    train = load_dataset(comparison.dataset, "train", data_dir=data_dir).to(device)
    test = load_dataset(comparison.dataset, "test", data_dir=data_dir)
    test = test.subset(torch.arange(min(comparison.images, len(test)))).to(device)
    for kind in comparison.kinds:
        try:
            yield _one_layer(comparison, kind, train, test)
        except (BronetError, RuntimeError) as error:  # a loss that is not finite, memory, a library's refusal
            yield Failure(kind, first_line(error))


def _one_layer(comparison: Comparison, kind: str, train: ImageSet, test: ImageSet) -> BudgetRow:
    recipe, device = recipe_of(comparison, kind), train.images.device
    model = build_model(recipe.model, dataset_spec(comparison.dataset), seed=comparison.seed, device=device)
    spent = train_for(model, recipe, train, comparison.budget)
    start = time.perf_counter()
    clean, certified, lipschitz, remark = _certified(model.eval(), test, recipe.certify.eps[:3])
    return BudgetRow(
        layer=kind,
        parameters=sum(p.numel() for p in model.parameters()),
        steps=spent.steps,
        epochs=round(spent.epochs, 3),
        train_seconds=round(spent.seconds, 3),
        certify_seconds=round(time.perf_counter() - start, 3),
        lipschitz=lipschitz,
        images=len(test),
        clean=clean,
        certified_1=certified[0],
        certified_2=certified[1],
        certified_3=certified[2],
        radii=" ".join(recipe.certify.eps[:3]),
        remark=remark,
    )


def recipe_of(comparison: Comparison, kind: str) -> Recipe:
    """Return the recipe of one layer: all alike but for the layer, and EMMA where it is what regularises."""
    architecture: Architecture
    if comparison.dataset == "digits":
        recipe = named_recipe("digits/quickstart")
        assert isinstance(recipe.model, BRONetArchitecture)
        architecture = replace(recipe.model, backbone=kind)
    else:
        recipe = named_recipe(f"{comparison.dataset}/lipconvnet-5-32")
        recipe = replace(recipe, train=replace(recipe.train, batch_size=_CIFAR_BATCH))
        architecture = LipConvNetArchitecture(depth=5, width=16, backbone=kind)
    # The digits' network has a regularised stem, so EMMA stays on for all of its layers.
    emma = kind == "lipreg" or comparison.dataset == "digits"
    return replace(
        recipe,
        model=architecture,
        loss=replace(recipe.loss, emma=emma),
        train=replace(recipe.train, seed=comparison.seed),
    )


@torch.no_grad()
def _certified(model: CertifiableModel, test: ImageSet, eps: Sequence[str]) -> tuple[float, list[float], float, str]:
    """Return clean accuracy, certified accuracies, the proved constant, and the first remark of a layer."""
    network = prove(model)
    correct, radii = [], []
    for index in torch.arange(len(test)).split(_CERTIFY_BATCH):
        certificate = network.certify(test.pixels(index, dtype=torch.float64))
        correct.append(certificate.prediction == test.labels[index.to(test.labels.device)])
        radii.append(certificate.radius)
    right, radius = torch.cat(correct), torch.cat(radii)
    certified = [float((right & (radius > parse_budget(text))).double().mean()) for text in eps]
    remarks = [layer.remark for _, layer in network.layers if layer.remark]
    return float(right.double().mean()), certified, network.lipschitz, remarks[0] if remarks else ""


def table(rows: Sequence[BudgetRow]) -> list[list[str]]:
    """Return the lines of the table, best certified accuracy at the first radius first."""
    ordered = sorted(rows, key=lambda row: row.certified_1, reverse=True)
    return [
        [
            row.layer,
            f"{row.parameters / 1e6:.2f}M",
            f"{row.steps}",
            f"{row.train_seconds:.1f} s",
            *(f"{100 * value:.1f}" for value in (row.clean, row.certified_1, row.certified_2, row.certified_3)),
            f"{row.lipschitz:.6g}",
        ]
        for row in ordered
    ]


def header(rows: Sequence[BudgetRow]) -> list[str]:
    """Return the names of the table's columns."""
    return [
        "layer",
        "parameters",
        "steps",
        "training",
        "clean %",
        *(f"{r} %" for r in rows[0].radii.split()),
        "Lipschitz",
    ]


def markdown(rows: Sequence[BudgetRow]) -> str:
    """Return the table as Markdown."""
    lines = [header(rows), ["---"] * len(header(rows)), *table(rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def draw(rows: Sequence[BudgetRow]) -> Figure:
    """Return a bar for clean and each certified accuracy of every layer, best first."""
    ordered = sorted(rows, key=lambda row: row.certified_1, reverse=True)
    figure = Figure(figsize=(10.0, 4.0), layout="constrained")
    axes = figure.add_subplot()
    labels = ["clean", *(f"certified at {radius}" for radius in ordered[0].radii.split())]
    for number, (label, color) in enumerate(zip(labels, _BARS, strict=True)):
        heights = [100 * (row.clean, row.certified_1, row.certified_2, row.certified_3)[number] for row in ordered]
        axes.bar([x + 0.2 * number for x in range(len(ordered))], heights, width=0.19, color=color, label=label)
    names = [f"{row.layer}\n{row.steps} steps" for row in ordered]
    axes.set_xticks([x + 0.3 for x in range(len(ordered))], names, fontsize=8)
    axes.set_ylabel("test images, %")
    axes.legend(frameon=False, fontsize=8)
    return figure
