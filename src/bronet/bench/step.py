"""Whole training steps and inference of a recipe, beside what the paper's published code takes on one H200."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from bronet.bench.timing import TimingRow, forget_earlier_memory, measure, timing_row
from bronet.layers import frozen
from bronet.models import build_model
from bronet.recipe import find_recipe, override
from bronet.recipe.schema import Recipe
from bronet.train.optimizer import optimizer_for
from bronet.train.step import TrainStep
from bronet.train.tally import Tally
from bronet.train.teacher import new_teacher

INFERENCE = "inference"
TRAINING = "training step"


@dataclass(frozen=True)
class Subject:
    """A recipe, what is timed of it, and the published code's milliseconds on one H200 (the recipe as it is)."""

    recipe: str
    kind: str
    published_ms: float | None
    settings: tuple[str, ...] = ()


GPU_SUBJECTS = (
    Subject("cifar10/bronet-m", TRAINING, 190.0),
    Subject("cifar10/bronet-l", TRAINING, 308.0),
    Subject("cifar100/lipconvnet-10-32", TRAINING, 56.6),
    Subject("cifar100/lipconvnet-10-64", TRAINING, 207.0),
    Subject("cifar10/bronet-m", INFERENCE, 30.5),
)
CPU_SUBJECTS = (Subject("cifar10/bronet-small", TRAINING, None), Subject("cifar10/bronet-small", INFERENCE, None))


def subjects_of(recipe: str, known: tuple[Subject, ...], settings: Sequence[str] = ()) -> tuple[Subject, ...]:
    """Return both subjects of a recipe, with the published code's time where the known ones have it."""
    both = tuple(Subject(recipe, kind, None, tuple(settings)) for kind in (TRAINING, INFERENCE))
    published = {replace(subject, published_ms=None): subject for subject in known}
    return tuple(published.get(subject, subject) for subject in both)


def bench_step(
    subjects: tuple[Subject, ...], device: torch.device, *, repeats: int, batch: int | None = None
) -> Iterator[tuple[Subject, TimingRow]]:
    """Yield a row for each subject: bf16 products on a GPU, float32 on a CPU, unless set; pixels are random."""
    precision = "bf16" if device.type == "cuda" else "float32"
    for subject in subjects:
        recipe = override(find_recipe(subject.recipe), [f"train.precision={precision}", *subject.settings])
        if batch is not None:
            recipe = replace(recipe, train=replace(recipe.train, batch_size=batch))
        take = _training if subject.kind == TRAINING else _inference
        name = ", ".join((recipe.name, *subject.settings, subject.kind))
        yield subject, take(recipe, name, device, repeats)


def _shape(recipe: Recipe) -> str:
    spec = recipe.data.spec()
    return f"{spec.channels} x {spec.height} x {spec.width}, batch {recipe.train.batch_size}"


def _inputs(recipe: Recipe, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    spec, batch = recipe.data.spec(), recipe.train.batch_size
    generator = torch.Generator(device).manual_seed(0)
    pixels = torch.rand(batch, spec.channels, spec.height, spec.width, generator=generator, device=device)
    labels = torch.randint(spec.classes, (batch,), generator=generator, device=device)
    return pixels, labels


def _training(recipe: Recipe, name: str, device: torch.device, repeats: int) -> TimingRow:
    forget_earlier_memory(device)
    model = build_model(recipe.model, recipe.data.spec(), device=device).train()
    optimizer = optimizer_for(recipe.optim, model)
    step = TrainStep(recipe, model, optimizer, Tally(eps=0.1, device=device), teacher=new_teacher(recipe, device))
    pixels, labels = _inputs(recipe, device)

    def once() -> None:
        step(pixels, labels, number=0, learning_rate=1e-4, emma_eps=0.1)

    if device.type == "cuda":  # the step records itself; let it finish that before the clock starts
        measure(once, device, repeats=3, record=False)
    return timing_row(
        once,
        device,
        bench="step",
        subject=name,
        shape=_shape(recipe),
        dtype=recipe.train.precision,
        repeats=repeats,
        record=False,
    )


@torch.no_grad()
def _inference(recipe: Recipe, name: str, device: torch.device, repeats: int) -> TimingRow:
    forget_earlier_memory(device)
    model = build_model(recipe.model, recipe.data.spec(), device=device).eval()
    pixels, _ = _inputs(recipe, device)
    bf16 = recipe.train.precision == "bf16"

    def once() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16, cache_enabled=False):
            model(pixels)

    with frozen(model):
        return timing_row(
            once,
            device,
            bench="step",
            subject=name,
            shape=_shape(recipe),
            dtype=recipe.train.precision,
            repeats=repeats,
        )
