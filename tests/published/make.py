"""Run the published code on the numbers of `published_cases` and store what it returns.

    PYTHONPATH=src:tests/helpers python tests/published/make.py CHECKOUT

CHECKOUT is a checkout of github.com/ntuaislab/BRONet. Writes outputs.npz beside this file: for every case the outputs
in training, those in evaluation where they differ, and the products of fixed directions with the gradients and with the
running means. Each entry below says which tensor of the published module holds which of ours.
"""

import math
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from published_cases import CASES, EPS, LABELS, built, direction, fixed, images, numbers

View = Callable[[Tensor], Tensor]
POWER_STEPS = 200


class Held(NamedTuple):
    """Where the published module holds a tensor of ours: under a name, at an index, in another form."""

    name: str
    index: int | None = None
    form: View = lambda ours: ours
    """From our form to theirs; a permutation or a reshaping."""


class Published(NamedTuple):
    """A module of the published code, what it holds of ours, and what it does to its input first."""

    module: nn.Module
    held: dict[str, Held]
    before: View = lambda x: x


def prepare(checkout: Path) -> None:
    """Let the published code run on a CPU in float64, in a group of one and without einops."""
    torch.set_default_dtype(torch.float64)  # it makes constants of its own
    torch.Tensor.cuda = lambda self, *_args, **_kwargs: self  # type: ignore[method-assign, assignment]
    einops = types.ModuleType("einops")
    einops.rearrange = lambda x, _pattern, k1, k2: nn.functional.pixel_unshuffle(x, k1)  # type: ignore[attr-defined]
    sys.modules["einops"] = einops
    file = tempfile.mkdtemp() + "/meeting"
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    if not (checkout / "lipconvnet").is_dir():
        raise SystemExit(f"CHECKOUT must hold the folders bronet and lipconvnet, got {checkout}")


def use(folder: Path) -> None:
    """Import `models` from this one of the two folders of the checkout."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("models", "utils")]:
        del sys.modules[name]
    sys.path[:] = [str(folder), *(entry for entry in sys.path if not entry.startswith(str(folder.parent)))]


def flipped(kernel: Tensor) -> Tensor:
    """The published layer conjugates the spectrum, which mirrors the kernel."""
    return kernel.flip(-2, -1)


def column(values: Tensor) -> Tensor:
    """One number for each output channel of a kernel."""
    return values.view(-1, 1, 1, 1)


def row(values: Tensor) -> Tensor:
    """One number for each row of a matrix."""
    return values.view(-1, 1)


def lipconvnet_cases() -> Iterator[tuple[str, Published]]:
    """Layers and networks of the folder lipconvnet."""
    from models.layers.bro import BRO  # type: ignore[import-not-found]
    from models.layers.cayley import Cayley  # type: ignore[import-not-found]
    from models.layers.lot import LOT  # type: ignore[import-not-found]
    from models.lip_convnets import LipConvNet  # type: ignore[import-not-found]
    from utils.custom_activations import HouseHolder, MaxMin  # type: ignore[import-not-found]

    both = {"0.weight": Held("weight"), "1.bias": Held("bias")}
    yield "bro", Published(BRO(8, 8, input_size=6, mask_level=0.25), both)
    yield "bro-stride", Published(BRO(3, 8, input_size=8, stride=2), both)
    yield "bro-wider", Published(BRO(4, 8, input_size=6), both)
    yield "maxmin", Published(MaxMin(), {})
    turned = Held("theta", form=lambda a: a.view(1, -1, 1, 1) + 2 * math.pi)  # the normal points the other way there
    yield "householder", Published(HouseHolder(8), {"angles": turned})
    yield "lot", Published(LOT(8, 8, kernel_size=[3, 3], bias=False), {"weight": Held("weight", form=flipped)})
    cayley = Cayley(8, 8, kernel_size=3, bias=False).double()
    weight = numbers("cayley/weight", (8, 8, 3, 3)) * 0.3
    cayley.alpha.data = torch.fft.rfft2(weight, (8, 8)).norm().view(1)  # it divides by this
    yield "cayley", Published(cayley, {"weight": Held("weight", form=flipped)})

    network = LipConvNet("bro", "maxmin", 4, 2, 100, 32, lln=True, mask_level=0.25)
    held = {"head.weight": Held("last_layer.weight"), "head.bias": Held("last_layer.bias")}
    for stage in range(5):
        for block, inner in ((0, ""), (1, "1." if stage == 4 else "")):
            ours, theirs = f"stages.{stage}.{block}.{inner}", f"layer{stage + 1}.{block}.conv"
            form: View = (lambda V: V[..., None, None]) if inner else (lambda V: V)
            held |= {f"{ours}linear.weight": Held(f"{theirs}.weight", form=form)}
            held |= {f"{ours}shift.bias": Held(f"{theirs}.bias")}
    mean = torch.tensor([0.4914, 0.4822, 0.4465], dtype=torch.float32).view(3, 1, 1)  # as ours is stored
    yield "lipconvnet", Published(network, held, before=lambda x: (x - mean) / 0.2507)


def bronet_cases() -> Iterator[tuple[str, Published]]:
    """Layers and networks of the folder bronet."""
    from models.backbone import LiResConvOrtho  # type: ignore[import-not-found]
    from models.dense import LiBroMLP, LiResMLP  # type: ignore[import-not-found]
    from models.head import head  # type: ignore[import-not-found]
    from models.margin_layer import _logit_annealing_loss, emma_loss  # type: ignore[import-not-found]
    from models.sll import SDPBasedLipschitzConvLayer  # type: ignore[import-not-found]

    dense = {"0.weight": Held("weights", 0), "0.residual.alpha": Held("gamma", 0, row), "1.bias": Held("bias", 0)}
    yield "bro-dense", Published(_of_depth_two(LiBroMLP(16, 1, nn.Identity(), 0.25)), dense)
    yield "cholesky-dense", Published(_of_depth_two(LiResMLP(16, 1, nn.Identity())), dense)
    sll = SDPBasedLipschitzConvLayer(8, 8).double()

    def divided(bias: Tensor) -> Tensor:
        """Our bias is added to U x, theirs to W x with U = T^-1/2 W."""
        sll.kernel.data = numbers("sll/weight", (8, 8, 3, 3)) * 0.3
        return (bias / sll.compute_t().detach().sqrt()).view(1, -1, 1, 1)

    yield "sll", Published(sll, {"weight": Held("kernel"), "bias": Held("bias", form=divided)})
    yield "soc", soc()
    for kind in ("lot", "cholesky"):
        layer = LiResConvOrtho(8, 1, 6, nn.Identity(), kind, centering=False)
        held = {"conv.weight": Held("weights", 0), "conv.residual.alpha": Held("gamma", 0, column)}
        yield f"{kind}-uncentred", Published(layer, held | {"bias.bias": Held("bias", 0)})
    annealing = _logit_annealing_loss(gamma=5.0, num_classes=5, offset=2.0, temperature=0.75)
    yield "la", Published(OfLogits(lambda _, x: annealing(x, LABELS)), {})
    adjusted = OfLogits(lambda network, x: emma_loss(network, x, LABELS, EPS, 1.0)[1])
    adjusted.network.head = head(6, 5, use_lln=True)
    yield "emma", Published(adjusted, {"weight": Held("network.head.weight")})
    yield "bronet-m", bronet("bronet-m", dense="bro")
    yield "bronet-l", bronet("bronet-l", classes=100)
    yield "bronet-tiny", bronet("bronet-tiny", classes=200, rank=1 / 8, neck="bro", dense="bro")
    yield "bronet-imagenet", bronet("bronet-imagenet", "hybridbrov2", classes=1000, neck="l2")
    yield "liresnet", bronet("liresnet", "nonortho")


def bronet(
    name: str,
    backbone: str = "bro",
    *,
    classes: int = 10,
    rank: float | None = None,
    neck: str = "cholesky",
    dense: str = "cholesky",
) -> Published:
    """Return a small BRONet; "hybrid" has a Lipschitz-regularised layer before the backbone, and a neck of patches."""
    from models import BRONet  # type: ignore[import-not-found]

    rank = rank or (0.25 if dense == "bro" else 0.5)
    hybrid = backbone.startswith("hybrid")
    network = BRONet(
        depth=2,
        depth_1=1,
        width=8,
        input_size=CASES[name].shape[-1],
        num_classes=classes,
        backbone_type=backbone,
        backbone_weight_rank_ratio=rank,
        neck_conv_type=neck,
        neck_linear_type="cholesky" if neck == "l2" else neck,
        neck_conv_patch_size=6 if neck == "l2" else 4,
        dense_width=16,
        dense_type=dense,
        dense_weight_rank_ratio=rank,
        linear_num=2,
    )
    held = {
        "stem.linear.weight": Held("stem.0.weight"),
        "stem.shift.bias": Held("stem.0.bias"),
        "neck.dense.linear.weight": Held("neck.weight"),
        "neck.dense.shift.bias": Held("neck.bias"),
        "head.weight": Held("head.weight"),
        "head.bias": Held("head.bias"),
    }
    if neck != "l2":
        held["neck.conv.weight"] = Held("neck.kernel")
    blocks = [("backbone.0", "conv", 0), ("backbone.1", "conv", 1)]
    for ours, theirs, i in [("regularized.0", "conv_1", 0), blocks[0]] if hybrid else blocks:
        kernel = flipped if hybrid and theirs == "conv" else lambda ours: ours
        held |= {
            f"{ours}.linear.weight": Held(f"{theirs}.weights", i, kernel),
            f"{ours}.linear.residual.alpha": Held(f"{theirs}.gamma", i, column),
            f"{ours}.shift.bias": Held(f"{theirs}.bias", i),
            f"{ours}.shift.mean": Held(f"{theirs}.running_mean", i),
        }
    for i in range(2):
        held |= {
            f"dense.{i}.linear.weight": Held("linear.weights", i),
            f"dense.{i}.linear.residual.alpha": Held("linear.gamma", i, row),
            f"dense.{i}.shift.bias": Held("linear.bias", i),
        }
    return Published(network, held)


def soc() -> Published:
    """Return SOC's layer, which estimates the norm of the kernel that it is given."""
    from models.soc import SOC  # type: ignore[import-not-found]

    layer = SOC(8, 8, 3, bias=False, init_iters=POWER_STEPS).double()

    def measured(weight: Tensor) -> Tensor:
        layer.weight.data = weight
        layer.update_sigma()
        return weight

    return Published(layer, {"weight": Held("weight", form=measured)})


class OfLogits(nn.Module):
    """What a loss returns for a network whose logits are the input."""

    def __init__(self, loss: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.loss, self.network = loss, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.loss(self.network, x)


def _of_depth_two(module: nn.Module) -> nn.Module:
    module.scale = 2**-0.5
    return module


def outputs(name: str, published: Published) -> dict[str, np.ndarray]:
    """Return what the published module gives for a case."""
    ours, theirs = built(name).state_dict(), published.module.double().train()
    state = dict([*theirs.named_parameters(), *theirs.named_buffers()])
    missing = [key for key in ours if not fixed(key) and key not in published.held]
    if missing:
        raise SystemExit(f"{name}: the published module must be given {', '.join(missing)}")
    with torch.no_grad():
        for key, held in published.held.items():
            target = state[held.name] if held.index is None else state[held.name][held.index]
            target.copy_(held.form(ours[key]))
    found: dict[str, Tensor] = {}
    if CASES[name].gradients:
        x = images(name).requires_grad_()
        found["training"] = theirs(published.before(x)).squeeze()
        (found["training"] * numbers(f"{name}/cotangent", tuple(found["training"].shape))).sum().backward()
        assert x.grad is not None
        products = {"input": direction(name, "input", x.grad)}
        for key, held in published.held.items():
            tensor = state[held.name]
            value = tensor.grad if isinstance(tensor, nn.Parameter) else tensor
            assert value is not None
            value = value if held.index is None else value[held.index]
            # A permutation or reshaping keeps products: the direction takes their form, too.
            products[key] = (value * held.form(numbers(f"{name}/{key}/direction", tuple(ours[key].shape)))).sum()
        found["products"] = torch.stack([products[key] for key in sorted(products)])
    with torch.no_grad():
        for key, held in published.held.items():  # running means have moved
            target = state[held.name] if held.index is None else state[held.name][held.index]
            target.copy_(held.form(ours[key]))
        evaluated = theirs.eval()(published.before(images(name))).squeeze()
    if "training" not in found or not torch.allclose(evaluated, found["training"], rtol=1e-14, atol=1e-14):
        found["evaluation"] = evaluated
    return {f"{name}/{key}": value.detach().numpy() for key, value in found.items()}


def main() -> None:
    checkout = Path(sys.argv[1]).resolve()
    prepare(checkout)
    found: dict[str, np.ndarray] = {}
    for folder, cases in (("lipconvnet", lipconvnet_cases), ("bronet", bronet_cases)):
        use(checkout / folder)
        for name, published in cases():
            found |= outputs(name, published)
    missing = {name for name in CASES if not any(key.startswith(f"{name}/") for key in found)}
    if missing:
        raise SystemExit(f"no published module for {', '.join(sorted(missing))}")
    np.savez_compressed(Path(__file__).with_name("outputs.npz"), **found)  # type: ignore[arg-type]


main()
