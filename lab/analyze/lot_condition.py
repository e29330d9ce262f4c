"""Does LOT's Newton iteration converge? Condition numbers per frequency, step by step (App. D.9, Figure 13).

For a dimension-preserving LOT layer with Kaiming-initialised parameters, and for the same layer after training on the
digits, every frequency's parameterised matrix is formed after 1, 2, ..., 50 Newton steps; an orthogonal one has
condition number one. Three forms: the formula in float64 and in float32, and the published code's, in float64 with its
ridge. The block reflector of the same parameters is shown beside. The paper trains on CIFAR, so its trained parameters
are others.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from bronet.data import load_dataset
from bronet.errors import BronetError
from bronet.layers.rivals.fourier import LOTConv2d
from bronet.models import build_model
from bronet.ortho.bro_convolution import Windows
from bronet.ortho.orthogonal_maps import LOT_STEPS, inverse_square_roots
from bronet.ortho.reflector import block_reflector
from bronet.ortho.spd import scale_of
from bronet.ortho.spectrum import centred_spectrum
from bronet.recipe import named_recipe
from bronet.recipe.architecture import StackArchitecture
from bronet.recipe.schema import LossRecipe, dataset_spec
from lab.bench.timed_training import Budget, train_for

NEWTON_STEPS = 50
LOT_RIDGE = 1e-4
"""What the published code adds to the diagonal of V V*, whose limit is then no orthogonal matrix."""
_PARAMETERS = ("kaiming", "trained")


class Form(NamedTuple):
    """A way of computing LOT's matrices, and the look of its curve."""

    ridge: float
    dtype: torch.dtype
    color: str
    line: str


FORMS = {
    "lot": Form(0.0, torch.float64, "#2458c7", "-"),
    "lot-float32": Form(0.0, torch.float32, "#7a3fb5", "--"),
    "lot-published": Form(LOT_RIDGE, torch.float64, "#c2410c", "-."),
}
_BRO_COLOR = "#0f7b5f"


class Row(NamedTuple):
    """Condition number and norm of one frequency's matrix after a number of Newton steps; BRO takes none."""

    layer: str
    parameters: str
    step: int
    frequency: int
    condition: float
    norm: float


@dataclass(frozen=True)
class LOTConditionSetting:
    """What is measured: the layer's channels, Newton steps, training steps, and the seed."""

    channels: int = 32
    steps: int = NEWTON_STEPS
    training_steps: int = 120
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("channels", "steps", "training_steps"):
            if getattr(self, name) < 1:
                raise BronetError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.channels % 2:
            raise BronetError(f"channels must be even (MaxMin pairs them), got {self.channels}")


def measure(setting: LOTConditionSetting) -> list[Row]:
    """Return the condition numbers of every frequency, step and kind of parameters."""
    kernels = dict(zip(_PARAMETERS, _kernels(setting), strict=True))
    return [row for name, kernel in kernels.items() for row in _rows_of(name, *kernel, steps=setting.steps)]


def _kernels(setting: LOTConditionSetting) -> list[tuple[Tensor, tuple[int, int]]]:
    """Return the Kaiming-initialised kernel of a layer that keeps its channels, and the same trained; with grids."""
    c = setting.channels
    architecture = StackArchitecture(layer="lot", widths=(c, c, c), kernels=(3, 3, 3), strides=(2, 1, 1))
    recipe = named_recipe("digits/quickstart")
    recipe = replace(
        recipe, model=architecture, loss=LossRecipe(name="la"), train=replace(recipe.train, seed=setting.seed)
    )
    model = build_model(architecture, dataset_spec("digits"), seed=setting.seed)
    layers = [layer for layer in model.modules() if isinstance(layer, LOTConv2d)]
    generator = torch.Generator().manual_seed(setting.seed)
    for layer in layers[1:]:  # those that keep the dimension, as in the paper
        nn.init.kaiming_normal_(layer.weight, generator=generator)
    watched = layers[-1]
    grid = Windows.of((4, 4), watched.padding).source.grid  # the digits' 8 x 8, halved once
    before = watched.weight.detach().double().clone()
    train_for(model, recipe, load_dataset("digits", "train"), Budget(steps=setting.training_steps))
    return [(before, grid), (watched.weight.detach().double(), grid)]


def _rows_of(name: str, kernel: Tensor, grid: tuple[int, int], *, steps: int) -> list[Row]:
    rows = []
    for form_name, form in FORMS.items():
        V = centred_spectrum(kernel.to(form.dtype), grid, dense=True)
        for step, W in enumerate(lot_iterates(V, steps=steps, ridge=form.ridge), start=1):
            rows += _rows_of_matrices(form_name, name, step, W)
    V = centred_spectrum(kernel, grid, dense=True)
    return rows + _rows_of_matrices("bro", name, 0, block_reflector(V[..., : V.shape[-1] // 2]))


def lot_iterates(V: Tensor, *, steps: int, ridge: float = 0.0) -> Iterator[Tensor]:
    """Yield (V V* + ridge I)^-1/2 V after 1, 2, ..., `steps` Newton steps; V must have no more rows than columns."""
    scale = scale_of(V)
    V = V / scale
    S = V @ V.mH + (ridge / scale**2) * torch.eye(V.shape[-2], dtype=V.dtype) if ridge else V @ V.mH
    size = torch.linalg.matrix_norm(S, keepdim=True).clamp_min(torch.finfo(S.real.dtype).tiny)
    for root in inverse_square_roots(S / size, steps=steps):
        yield root @ (V / size.sqrt())


def _rows_of_matrices(layer: str, parameters: str, step: int, W: Tensor) -> list[Row]:
    """Return one row per frequency; the condition number of a singular matrix is infinity."""
    values = torch.linalg.svdvals(W.to(torch.complex128))
    conditions, norms = values[..., 0] / values[..., -1], values[..., 0]
    pairs = zip(conditions.tolist(), norms.tolist(), strict=True)
    return [Row(layer, parameters, step, f, condition, norm) for f, (condition, norm) in enumerate(pairs)]


class Line(NamedTuple):
    """What a table shows of one form, parameters and step, over all frequencies."""

    layer: str
    parameters: str
    step: int
    median_condition: float
    worst_condition: float
    norm: float


def summary(rows: Sequence[Row]) -> list[Line]:
    """Return the lines of the published and the last number of steps."""
    last = max(row.step for row in rows)
    chosen = {0, min(LOT_STEPS, last), last}
    keys = sorted({row[:3] for row in rows if row.step in chosen}, key=lambda key: (key[1], key[0], key[2]))
    lines = []
    for key in keys:
        of_key = [row for row in rows if row[:3] == key]
        conditions = [row.condition for row in of_key]
        lines.append(Line(*key, statistics.median(conditions), max(conditions), max(row.norm for row in of_key)))
    return lines


def draw(rows: Sequence[Row]) -> Figure:
    """Return Figure 13: random parameters on the left, trained ones on the right."""
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, name, title in zip(panels, _PARAMETERS, ("Kaiming parameters", "trained parameters"), strict=True):
        _draw_panel(axes, [row for row in rows if row.parameters == name])
        axes.set(title=title, xlabel="Newton steps", yscale="log")
    panels[0].set_ylabel("condition number")
    return figure


def _draw_panel(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw each form's range over frequencies as a band and its worst as a line, and BRO's worst beside."""
    for name, form in FORMS.items():
        of_form = [row for row in rows if row.layer == name]
        steps = sorted({row.step for row in of_form})
        by_step = [[row.condition for row in of_form if row.step == step] for step in steps]
        worst = [max(values) for values in by_step]
        axes.fill_between(steps, [min(values) for values in by_step], worst, color=form.color, alpha=0.1, linewidth=0)
        axes.plot(steps, worst, color=form.color, linestyle=form.line, label=f"{name}, worst frequency")
    bro = max(row.condition for row in rows if row.layer == "bro")
    axes.axhline(bro, color=_BRO_COLOR, linewidth=1.8, label="bro, worst frequency")
    axes.axvline(min(LOT_STEPS, steps[-1]), color="#667085", linewidth=0.8, linestyle=":")
    axes.legend(frameon=False, fontsize=8)
