"""What layers and networks take on this machine, beside plain torch and other libraries: the table of `bronet bench`.

The contenders of a piece of work run in turn, so that whatever else the machine does meets all alike; a ratio is the
median over the turns of the quotient of two neighbours. "Plain" is an ordinary layer or network of the same shapes,
with ReLU, which certifies nothing. Other libraries take part where they are installed: the extra `peers`.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from bronet.bench.timing import hardware_name
from bronet.errors import BronetError
from bronet.graph.network import prove
from bronet.layers import (
    BROConv2d,
    BROLinear,
    CholeskyLinear,
    Convolution,
    Flatten,
    MaxMin,
    Normalization,
    PixelUnshuffle,
    frozen,
)
from bronet.layers.base import LipschitzLayer
from bronet.layers.head import Head
from bronet.losses import cross_entropy
from bronet.models import build_model
from bronet.recipe import Recipe, named_recipe

OURS = "bronet"
_WARM_UP, _LEAST_TURNS = 2, 5

Action = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class ComparedRow:
    """One contender. `ratio` is its time over ours, `spread` the distance of the ratio's quartiles over the ratio."""

    work: str
    contender: str
    ms: float
    processor_ms: float
    ratio: float
    spread: float
    turns: int
    threads: int
    device: str
    torch: str


@dataclass(frozen=True)
class LayerShape:
    """A square convolution of three taps per axis: channels, side of the image, images and rank n."""

    channels: int
    side: int
    batch: int

    def __str__(self) -> str:
        return f"{self.channels} channels, {self.side} x {self.side}, batch {self.batch}, n = {self.rank}"

    @property
    def rank(self) -> int:
        return self.channels // 4


LAYERS = (LayerShape(64, 32, 32), LayerShape(256, 16, 32), LayerShape(512, 8, 64), LayerShape(32, 64, 16))
NETWORKS = {
    "LipConvNet-5-32": "cifar10/lipconvnet-5-32",
    "LipConvNet-10-32": "cifar10/lipconvnet-10-32",
    "BRONet-S": "cifar10/bronet-s-fast",
}
BATCH = 64


def compare(device: torch.device, *, seconds: float, only: str = "") -> Iterator[ComparedRow]:
    """Yield a row for every contender of every piece of work whose name contains `only`; `seconds` for each work."""
    chosen = [(name, contenders) for name, contenders in works(device) if only in name]
    if not chosen:
        raise BronetError(f"--only must be part of the name of a piece of work, such as 'BRONet-S', got {only!r}")
    for name, contenders in chosen:
        yield from interleaved(name, contenders(), device, seconds=seconds)


def works(device: torch.device) -> Iterator[tuple[str, Callable[[], Mapping[str, Action]]]]:
    """Yield the name of each piece of work, and what makes its contenders, ours first."""
    for shape in LAYERS:
        yield f"layer, training step: {shape}", partial(_layers, shape, device, training=True)
        yield f"layer, evaluation: {shape}", partial(_layers, shape, device, training=False)
    for name, recipe in NETWORKS.items():
        for batch in (1, BATCH):
            yield f"{name}, evaluation, batch {batch}", partial(_evaluations, named_recipe(recipe), batch, device)
        yield f"{name}, training step, batch {BATCH}", partial(_trainings, named_recipe(recipe), device)
    yield f"BRONet-S, certificates, batch {BATCH}", partial(_certificates, named_recipe(NETWORKS["BRONet-S"]), device)


def interleaved(
    work: str, contenders: Mapping[str, Action], device: torch.device, *, seconds: float
) -> Iterator[ComparedRow]:
    """Time contenders in turn for about so many seconds and yield a row for each."""
    for action in contenders.values():
        for _ in range(_WARM_UP):
            _clocked(action, device)
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    end, done = time.perf_counter() + seconds, 0
    while done < _LEAST_TURNS or time.perf_counter() < end:
        for name, action in contenders.items():
            turns[name].append(_clocked(action, device))
        done += 1
    ours = [wall for wall, _ in next(iter(turns.values()))]
    for name, times in turns.items():
        ratios = sorted(wall / own for (wall, _), own in zip(times, ours, strict=True))
        low, ratio, high = statistics.quantiles(ratios, n=4)
        yield ComparedRow(
            work=work,
            contender=name,
            ms=round(1e3 * statistics.median(wall for wall, _ in times), 3),
            processor_ms=round(1e3 * statistics.median(processor for _, processor in times), 3),
            ratio=round(ratio, 3),
            spread=round((high - low) / ratio, 3),
            turns=done,
            threads=torch.get_num_threads(),
            device=hardware_name(device),
            torch=torch.__version__,
        )


def _clocked(action: Action, device: torch.device) -> tuple[float, float]:
    """Return the seconds on the clock and those of the processor."""
    _wait(device)
    wall, processor = time.perf_counter(), time.process_time()
    action()
    _wait(device)
    return time.perf_counter() - wall, time.process_time() - processor


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _layers(shape: LayerShape, device: torch.device, *, training: bool) -> Mapping[str, Action]:
    c = shape.channels
    x = random_images(shape.batch, c, shape.side, shape.side, device=device) - 0.5
    layers: dict[str, nn.Module] = {OURS: BROConv2d(c, c, rank=shape.rank), "plain": nn.Conv2d(c, c, 3, padding=1)}
    if find_spec("orthogonium"):
        from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d

        layers["orthogonium AOC"] = AdaptiveOrthoConv2d(c, c, 3, padding=1)
    if find_spec("deel"):
        from deel.torchlip import SpectralConv2d

        layers["torchlip spectral"] = SpectralConv2d(c, c, 3, padding=1)
    take = _training_of_layer if training else evaluation_of
    return {name: take(layer.to(device), x) for name, layer in layers.items()}


def _training_of_layer(layer: nn.Module, x: Tensor) -> Action:
    x = x.clone().requires_grad_()
    parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    gradient = random_images(*layer(x).shape, device=x.device) - 0.5
    return lambda: torch.autograd.grad(layer(x), [x, *parameters], gradient)


def evaluation_of(module: nn.Module, x: Tensor) -> Action:
    """Return evaluation with weights computed beforehand: each library's own way."""
    module.eval()
    weights = ExitStack()
    if any(isinstance(part, LipschitzLayer) for part in module.modules()):
        weights.enter_context(frozen(module))
    elif find_spec("deel") and type(module).__module__.startswith("deel."):
        module = module.vanilla_export()  # type: ignore[operator]
    else:
        for part in list(module.modules()):
            if nn.utils.parametrize.is_parametrized(part, "weight"):
                nn.utils.parametrize.remove_parametrizations(part, "weight", leave_parametrized=True)

    def evaluate(weights: ExitStack = weights) -> None:  # which are kept as long as this function
        with torch.inference_mode():
            module(x)

    return evaluate


def _networks(recipe: Recipe, device: torch.device) -> Mapping[str, nn.Module]:
    spec = recipe.data.spec()
    model = build_model(recipe.model, spec, device=device)
    return {OURS: model, "plain": plain_network(model, spec.shape)}


def _evaluations(recipe: Recipe, batch: int, device: torch.device) -> Mapping[str, Action]:
    x = random_images(batch, *recipe.data.spec().shape, device=device)
    return {name: evaluation_of(network, x) for name, network in _networks(recipe, device).items()}


def _trainings(recipe: Recipe, device: torch.device) -> Mapping[str, Action]:
    """Forward and backward pass and SGD on random images; cross-entropy for all."""
    spec = recipe.data.spec()
    x = random_images(BATCH, *spec.shape, device=device)
    labels = torch.arange(BATCH, device=device) % spec.classes

    def training(network: nn.Module) -> Action:
        optimiser = torch.optim.SGD(network.train().parameters(), lr=1e-4)

        def step() -> None:
            optimiser.zero_grad()
            cross_entropy(network(x), labels).backward()  # type: ignore[no-untyped-call]
            optimiser.step()

        return step

    return {name: training(network) for name, network in _networks(recipe, device).items()}


def _certificates(recipe: Recipe, device: torch.device) -> Mapping[str, Action]:
    """Certificates with a proof made before, beside evaluation of the plain network, both in float64."""
    model = _networks(recipe, device)
    x = random_images(BATCH, *recipe.data.spec().shape, device=device).double()
    proof = prove(model[OURS].eval())
    return {OURS: partial(proof.certify, x), "plain": evaluation_of(model["plain"].double(), x)}


def plain_network(model: nn.Module, shape: tuple[int, ...]) -> nn.Sequential:
    """Return ordinary layers of the shapes of a network whose layers follow one another, like BRONet's."""
    layers: list[nn.Module] = []
    leaves = [part for part in model.modules() if isinstance(part, LipschitzLayer)]
    leaves = [leaf for leaf in leaves if not any(leaf in list(other.modules())[1:] for other in leaves)]
    hooks = [leaf.register_forward_hook(lambda leaf, xs, y: layers.extend(_plain(leaf, xs[0], y))) for leaf in leaves]
    like = next(model.parameters())
    with torch.no_grad():
        model(torch.zeros(1, *shape, device=like.device))
    for hook in hooks:
        hook.remove()
    return nn.Sequential(*layers).to(like.device)


def _plain(layer: nn.Module, x: Tensor, y: Tensor) -> list[nn.Module]:
    """Return what takes the place of a layer; a bias belongs to the layer before it, the mean of centring as well."""
    c_in, c_out = x.shape[1], y.shape[1]
    layers: list[nn.Module] = []
    match layer:
        case Convolution():
            layers += [nn.PixelUnshuffle(layer.factor)] if layer.factor > 1 else []
            stride = layer.stride // layer.factor
            layers.append(nn.Conv2d(layer.inner_channels, c_out, layer.kernel_size, stride, layer.padding))
        case BROLinear() | CholeskyLinear() | Head():
            layers.append(nn.Linear(c_in, c_out) if x.ndim == 2 else nn.Conv2d(c_in, c_out, 1))
        case PixelUnshuffle():
            layers.append(nn.PixelUnshuffle(layer.factor))
        case MaxMin():
            layers.append(nn.ReLU())
        case Flatten():
            layers.append(nn.Flatten())
        case Normalization():
            layers.append(layer)
    return layers


def random_images(*shape: int, device: torch.device) -> Tensor:
    """Return uniform numbers of this shape, the same for all contenders."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)).to(device)
