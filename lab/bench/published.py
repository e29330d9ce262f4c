"""The published code beside ours: what it took on one H200, as rows, and how to measure a checkout of it again.

A step of theirs is forward pass, loss, backward pass, clipping and optimiser (for BRONet NAdam without the Lookahead of
a further package), in float32 with TF32 products, as it was published; ours is timed by `recipe_rows`.
"""

import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from bronet.bench.comparison import BATCH, NETWORKS, OURS, ComparedRow, evaluation_of, interleaved, random_images
from bronet.errors import BronetError
from bronet.models import build_model
from bronet.recipe import named_recipe
from bronet.recipe.architecture import BRONetArchitecture, LipConvNetArchitecture, parse_rank
from bronet.records import read_rows
from lab.bench.timing import INFERENCE, TRAINING, TimingRow, timing_row
from lab.tables.published import RESULTS

FILE = RESULTS / "bench" / "published-step.csv"
RECIPES = ("cifar10/bronet-m", "cifar10/bronet-l", "cifar100/lipconvnet-10-32", "cifar100/lipconvnet-10-64")
CLIP_NORM = 3.0


@dataclass(frozen=True, kw_only=True)
class PublishedTime:
    """Milliseconds of the published code, where and when they were measured."""

    recipe: str
    kind: str
    batch: int
    dtype: str
    device: str
    median_ms: float
    date: str


def published_times() -> dict[tuple[str, str], float]:
    """Return the committed times by recipe and kind."""
    rows = read_rows(PublishedTime, FILE, advice="restore it from the repository")
    return {(row.recipe, row.kind): row.median_ms for row in rows}


def time_published(
    checkout: Path, device: torch.device, *, repeats: int, recipes: tuple[str, ...] = RECIPES, batch: int | None = None
) -> Iterator[TimingRow]:
    """Yield a row for a training step and one for inference of each recipe's network in the published code."""
    _prepare(checkout, device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for name in recipes:
        recipe = named_recipe(name)
        spec, size = recipe.data.spec(), batch or recipe.train.batch_size
        network = _network(checkout, name).to(device)
        ours = sum(parameter.numel() for parameter in build_model(recipe.model, spec, device="meta").parameters())
        theirs = sum(parameter.numel() for parameter in network.parameters())
        if abs(ours - theirs) > ours // 100:
            raise BronetError(f"the published {name} must have about {ours:,} parameters, got {theirs:,}")
        x = torch.rand(size, *spec.shape, device=device)
        labels = torch.randint(spec.classes, (size,), device=device)
        for kind in (TRAINING, INFERENCE):
            training = kind == TRAINING
            network.train(training)
            with torch.set_grad_enabled(training):
                yield timing_row(
                    _step(network, x, labels) if training else partial(network, x),
                    device,
                    bench="published",
                    subject=f"{name}, {kind}",
                    shape=f"{spec.channels} x {spec.height} x {spec.width}, batch {size}",
                    dtype="TF32" if device.type == "cuda" else "float32",
                    repeats=repeats,
                    record=False,
                )


def compare_with_published(checkout: Path, device: torch.device, *, seconds: float) -> Iterator[ComparedRow]:
    """Yield rows for our networks and the published ones, timed in turn: evaluation, each with its weights kept."""
    _prepare(checkout, device)
    for title, name in NETWORKS.items():
        recipe = named_recipe(name)
        spec = recipe.data.spec()
        for batch in (1, BATCH):
            x = random_images(batch, *spec.shape, device=device)
            networks = {OURS: build_model(recipe.model, spec, device=device), "published": _network(checkout, name)}
            actions = {who: evaluation_of(network.to(device), x) for who, network in networks.items()}
            yield from interleaved(f"{title}, evaluation, batch {batch}", actions, device, seconds=seconds)


def _prepare(checkout: Path, device: torch.device) -> None:
    """Let the published code run in one process: it asks for CUDA, a process group, and one function of einops."""
    for folder in ("bronet", "lipconvnet"):
        if not (checkout / folder / "models").is_dir():
            raise BronetError(f"CHECKOUT must hold {folder}/models of github.com/ntuaislab/BRONet, got {checkout}")
    einops = types.ModuleType("einops")
    einops.rearrange = lambda x, _pattern, k1, k2: nn.functional.pixel_unshuffle(x, k1)  # type: ignore[attr-defined]
    sys.modules.setdefault("einops", einops)
    if device.type == "cpu":
        torch.Tensor.cuda = lambda tensor, *_device: tensor  # type: ignore[method-assign, assignment]
    if not torch.distributed.is_initialized():
        meeting = Path(tempfile.mkdtemp()) / "meeting"
        torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)


def _network(checkout: Path, name: str) -> nn.Module:
    """Return the published network of a recipe; both parts of the checkout call their package `models`."""
    model, classes = named_recipe(name).model, named_recipe(name).data.spec().classes
    folder = checkout / ("bronet" if isinstance(model, BRONetArchitecture) else "lipconvnet")
    for module in [module for module in sys.modules if module.partition(".")[0] in ("models", "utils")]:
        del sys.modules[module]
    sys.path.insert(0, str(folder))
    try:
        if isinstance(model, BRONetArchitecture):
            from models import BRONet  # type: ignore[import-not-found]

            rank = float(parse_rank(model.rank))
            network: nn.Module = BRONet(
                depth=model.depth,
                width=model.width,
                num_classes=classes,
                backbone_type="bro",
                backbone_weight_rank_ratio=rank,
                neck_conv_type=model.neck,
                neck_linear_type=model.neck,
                dense_width=model.dense_width,
                dense_type=model.dense,
                dense_weight_rank_ratio=rank,
                linear_num=model.dense_depth,
            )
            return network
        from models.lip_convnets import LipConvNet  # type: ignore[import-not-found]

        assert isinstance(model, LipConvNetArchitecture)
        rank, blocks = float(parse_rank(model.rank)), model.depth // 5
        network = LipConvNet("bro", "maxmin", model.width, blocks, classes, 32, lln=True, mask_level=rank)
        return network  # noqa: RET504, because it has a type
    finally:
        sys.path.remove(str(folder))


def _step(network: nn.Module, x: Tensor, labels: Tensor) -> Callable[[], None]:
    regularized = getattr(network, "sub_lipschitz", None)  # BRONet: the loss sees the estimate of the constant
    parameters = list(network.parameters())
    optimizer = torch.optim.NAdam(parameters) if regularized else torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(x), labels)
        if regularized is not None:
            loss = loss + 1e-6 * regularized()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
        optimizer.step()

    return step
