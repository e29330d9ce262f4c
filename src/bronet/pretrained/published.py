"""Checkpoints of the published code (github.com/ntuaislab/BRONet) as runs of this library.

Read are BRONet and LiResNet for images of 32 or 64 pixels and LipConvNet, all with MaxMin and, in LipConvNet, BRO
layers. The shapes of the tensors say which network it is, but in LipConvNet nothing shows an activation without
parameters: MaxMin, that of the published runs, is supposed. Whatever the weights, the certificate made of them is
sound: it speaks of the network as it is computed here. Not read, because no network here computes the same: hybrid and
second-version backbones.

Loading never runs code: what is no plain tensor, number or text is refused by torch's `weights_only`.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from bronet.errors import BronetError
from bronet.models import build_model
from bronet.recipe import named_recipe
from bronet.recipe.architecture import Architecture, BRONetArchitecture, LipConvNetArchitecture
from bronet.recipe.schema import DATASETS, DataRecipe, DatasetSpec
from bronet.run.folder import RunFolder, create_run
from bronet.run.weights import fitting, require_ordinary, save_weights

STAGES = 5
DERIVED = ("init_x", "identity", "identity_half", "residual_identity", "I_low", "I_full", "eval_weight", "eval_weights")
"""Buffers that follow from the others, or that only training reads."""
OWN = ("normalization.mean", "power_vector")
"""Of ours: constants, and what only training reads."""
USUAL = {
    "act_name": "minmax",
    "backbone_quasi_residual": True,
    "backbone_id_random_init": False,
    "backbone_zero_padding": True,
    "dense_quasi_residual": True,
    "dense_id_random_init": False,
    "use_lln": True,
}
"""Settings of the published BRONet that its tensors do not show, as its configurations have them."""


@dataclass(frozen=True)
class Held:
    """Where a checkpoint holds a tensor of ours: under a name, at an index, in another form."""

    name: str
    index: int | None = None
    form: Callable[[Tensor], Tensor] = lambda theirs: theirs


def import_published(file: Path | str, folder: Path | str, *, overwrite: bool = False) -> RunFolder:
    """Write a checkpoint of the published code as a run that can be certified, verified, attacked and exported.

    Guaranteed: every parameter of the network came from the file, and no parameter of the file is left out.
    """
    architecture, spec, state = read_published(Path(file))
    base = "cifar10/bronet-m" if isinstance(architecture, BRONetArchitecture) else "cifar100/lipconvnet-10-32"
    name = f"published-{architecture.family}"
    recipe = replace(named_recipe(base), name=name, data=DataRecipe(name=spec.name), model=architecture)
    run = create_run(Path(folder), recipe, overwrite=overwrite, advice="overwrite replaces it")
    save_weights(run.weights, state, recipe=recipe)
    run.write_record({"imported": Path(file).name})
    return run


def read_published(path: Path) -> tuple[Architecture, DatasetSpec, dict[str, Tensor]]:
    """Return architecture, data set and state, in our names, of a checkpoint of the published code."""
    theirs = _loaded(path)
    architecture, spec, held = _bronet(theirs, path) if "conv.weights" in theirs else _lipconvnet(theirs, path)
    read = {entry.name for entry in held.values()}
    left = sorted(name for name in theirs if name not in read and name.rpartition(".")[2] not in DERIVED)
    if left:
        raise BronetError(f"{path} holds {len(left)} tensors of another network, the first is {left[0]}")
    outline = build_model(architecture, spec, device="meta").state_dict()  # before anything of its size is made
    wanted = {ours: tensor for ours, tensor in outline.items() if not ours.endswith(OWN)}
    found = dict[str, Tensor]()
    layers = Counter(entry.name for entry in held.values() if entry.index is not None)
    for ours, entry in held.items():
        tensor = _tensor(theirs, entry.name, path)
        if entry.index is not None and tensor.shape[:1] != (layers[entry.name],):
            raise BronetError(
                f"{entry.name} in {path} must be of {layers[entry.name]} layers, got {tuple(tensor.shape)}"
            )
        found[ours] = entry.form(tensor if entry.index is None else tensor[entry.index]).detach().clone().contiguous()
    found = fitting(found, wanted, path)
    return architecture, spec, build_model(architecture, spec).state_dict() | found


def _loaded(path: Path) -> dict[str, Tensor]:
    """Return the parameters and buffers in a file of torch; settings that change what they mean are refused."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other formats, which are refused
            content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise BronetError(f"cannot read {path} ({error.strerror or error})") from None
    except Exception as error:  # whatever torch makes of bytes that are none of its own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise BronetError(
            f"{path} must be a checkpoint of tensors, numbers and text, but torch says: {reason}"
        ) from None
    if isinstance(content, Mapping) and isinstance(content.get("backbone"), Mapping):
        configs = content.get("configs", {})
        chosen = configs.get("model", {}) if isinstance(configs, Mapping) else {}
        for name, usual in USUAL.items():
            given = chosen.get(name, usual) if isinstance(chosen, Mapping) else usual
            if (given.lower() if isinstance(given, str) else given) != usual:
                raise BronetError(f"{name} of {path} must be {usual} to be read, got {given!r:.40}")
        content = content["backbone"]
    if not isinstance(content, Mapping) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise BronetError(f"{path} must hold the state of a network, tensors by name, but it holds something else")
    state = {str(name).removeprefix("module."): tensor for name, tensor in content.items()}
    require_ordinary(state, path)
    return state


def _tensor(theirs: Mapping[str, Tensor], name: str, path: Path, ndim: int | None = None) -> Tensor:
    if name not in theirs:
        raise BronetError(f"{path} must be a checkpoint of the published BRONet or LipConvNet, but it lacks {name}")
    if ndim is not None and theirs[name].ndim != ndim:
        raise BronetError(f"{name} in {path} must have {ndim} dimensions, got {tuple(theirs[name].shape)}")
    if not theirs[name].numel():
        raise BronetError(f"{name} in {path} must hold numbers, got shape {tuple(theirs[name].shape)}")
    return theirs[name]


def _data(side: int, classes: int, path: Path) -> DatasetSpec:
    """Return the known data set of square colour images with this side and number of classes."""
    for spec in DATASETS.values():
        if (spec.shape, spec.classes) == ((3, side, side), classes):
            return spec
    raise BronetError(f"{path} must be of CIFAR-10, CIFAR-100 or Tiny-ImageNet, got {side} pixels, {classes} classes")


Read = tuple[Architecture, DatasetSpec, dict[str, Held]]


def _bronet(theirs: Mapping[str, Tensor], path: Path) -> Read:
    """Return what the tensors of a BRONet or a LiResNet show, and where ours are among them."""

    def shape(name: str, ndim: int) -> tuple[int, ...]:
        return tuple(_tensor(theirs, name, path, ndim).shape)

    depth, width, n, *_ = shape("conv.weights", 5)
    *_, stem = shape("stem.0.weight", 4)
    is_regularized = "conv.init_x" in theirs
    dense = shape("linear.weights", 3) if "linear.weights" in theirs else (0, 1, 1)
    is_square = dense[1] == dense[2]
    kernel, (out, features) = shape("neck.kernel", 2), shape("neck.weight", 2)
    neck_is_bro = kernel[0] > kernel[1]
    if neck_is_bro:
        out, features = features, out
    patch, side = round((max(kernel) / width) ** 0.5), round((features / width) ** 0.5)
    if not is_regularized and n == width:
        raise BronetError(f"backbone of {path} must be BRO or Lipschitz-regularised, got square matrices")
    rank = Fraction(1, 4) if is_regularized else Fraction(n, width)
    if not is_square and dense[2] != max(1, round(dense[1] * rank)):
        raise BronetError(f"dense layers of {path} must have the backbone's rank {rank}, got {dense[2]} of {dense[1]}")
    architecture = BRONetArchitecture(
        width=width,
        depth=depth,
        dense_depth=dense[0],
        dense_width=out,
        rank=str(rank),
        backbone="lipreg" if is_regularized else "bro",
        dense="cholesky" if is_square else "bro",
        neck="bro" if neck_is_bro else "cholesky",
        neck_patch=patch,
        published_neck=True,
        stem_kernel=stem,
        stem_padding=stem // 2,
        centring="conv.running_mean" in theirs,
    )
    spec = _data(2 * patch * side, len(_tensor(theirs, "head.bias", path, 1)), path)

    held = {
        "stem.linear.weight": Held("stem.0.weight"),
        "stem.shift.bias": Held("stem.0.bias"),
        "neck.conv.weight": Held("neck.kernel"),
        "neck.dense.linear.weight": Held("neck.weight"),
        "neck.dense.shift.bias": Held("neck.bias"),
        "head.weight": Held("head.weight"),
        "head.bias": Held("head.bias"),
    }
    for table, layers, count in (("conv", "backbone", depth), ("linear", "dense", dense[0])):
        for i in range(count):
            held |= {
                f"{layers}.{i}.linear.weight": Held(f"{table}.weights", i),
                f"{layers}.{i}.linear.residual.alpha": Held(f"{table}.gamma", i, torch.flatten),
                f"{layers}.{i}.shift.bias": Held(f"{table}.bias", i),
            }
            if architecture.centring and layers == "backbone":
                held[f"{layers}.{i}.shift.mean"] = Held(f"{table}.running_mean", i)
    return architecture, spec, held


def _lipconvnet(theirs: Mapping[str, Tensor], path: Path) -> Read:
    """Return what the tensors of a LipConvNet of BRO layers show, and where ours are among them."""
    blocks = sum(name.startswith("layer1.") and name.endswith(".conv.weight") for name in theirs)
    first = _tensor(theirs, f"layer1.{max(0, blocks - 1)}.conv.weight", path, 4)
    # In a file of LOT or plain kernels the first of a row is square, or has fewer rows than columns where it has a
    # stride; of BRO both have more rows.
    rows, columns, *_ = _tensor(theirs, "layer2.0.conv.weight", path, 4).shape
    if rows <= columns:
        raise BronetError(
            f"layer2.0.conv.weight in {path} must have more rows than columns, as BRO layers have (LOT, SOC and Cayley "
            f"are not read), got {rows} x {columns}"
        )
    rank = Fraction(columns, rows) if blocks > 1 else Fraction(1, 8)
    head = _tensor(theirs, "last_layer.weight", path)
    architecture = LipConvNetArchitecture(
        depth=STAGES * blocks,
        width=len(_tensor(theirs, f"layer1.{blocks - 1}.conv.bias", path, 1)) // 2,
        rank=str(rank),
        kernel=first.shape[-1],
        head="bro" if head.ndim == 4 else "lln",
    )
    classes = len(_tensor(theirs, "last_layer.bias", path, 1))
    features, planes = max(head.shape[:2]), len(_tensor(theirs, f"layer5.{blocks - 1}.conv.bias", path, 1))
    spec = _data(2**STAGES * round((features / planes) ** 0.5), classes, path)
    ours = "head.linear.weight" if head.ndim == 4 else "head.weight"
    held = {ours: Held("last_layer.weight", form=_of_one_pixel), "head.bias": Held("last_layer.bias")}
    for stage, block in product(range(STAGES), range(blocks)):
        is_last = (stage, block) == (STAGES - 1, blocks - 1)
        ours, name = f"stages.{stage}.{block}.{'1.' if is_last else ''}", f"layer{stage + 1}.{block}.conv"
        held[f"{ours}linear.weight"] = Held(f"{name}.weight", form=_of_one_pixel if is_last else lambda V: V)
        held[f"{ours}shift.bias"] = Held(f"{name}.bias")
    return architecture, spec, held


def _of_one_pixel(weight: Tensor) -> Tensor:
    """Return the matrix of a kernel of one pixel."""
    return weight.flatten(2).squeeze(2) if weight.ndim == 4 and weight.shape[2:].numel() == 1 else weight
