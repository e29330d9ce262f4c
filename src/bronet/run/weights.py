"""Named tensors in a safetensors file, and a trained model in one: its weights, with the recipe they belong to.

The format holds numbers and text only, so reading a file from anywhere can never run code. A file that is truncated,
foreign or of another kind is refused in one line. Weights may be stored in another floating dtype than the model's: any
values give 1-Lipschitz layers, and a certificate is about the weights as loaded.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.files import Json, read_object, replace_file
from bronet.models import Network, build_model
from bronet.recipe.architecture import OwnArchitecture
from bronet.recipe.schema import Recipe
from bronet.recipe.text import from_text, to_text
from bronet.run.folder import RunFolder

FORMAT_KEY = "bronet"
KIND = "weights"
RECIPE_KEY = "recipe"
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
STORED = {*FLOATS, torch.complex64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}
"""Kinds of numbers that parameters and buffers may have."""


def save_weights(path: Path, state: Mapping[str, Tensor], *, recipe: Recipe) -> None:
    """Write a model's parameters and buffers, its `state_dict()`, with the recipe, atomically."""
    write_tensors(path, KIND, state, {RECIPE_KEY: to_text(recipe)})


def stored_recipe(path: Path) -> Recipe:
    """Return the recipe stored with the weights, without reading the weights."""
    _, metadata = read_tensors(path, KIND, [RECIPE_KEY], device="meta")
    return from_text(metadata[RECIPE_KEY])


def load_weights(path: Path, model: nn.Module) -> None:
    """Copy stored weights into the model; names, shapes and values are checked before anything changes."""
    tensors, _ = read_tensors(path, KIND, [RECIPE_KEY])
    _copy_into(model, tensors, path)


def trained_model(path: Path, recipe: Recipe, *, device: torch.device | str = "cpu") -> Network:
    """Return the network of a recipe with stored weights, in evaluation mode.

    A recipe may name a network of any size: nothing of its size is built before the file is known to hold it.
    """
    tensors, _ = read_tensors(path, KIND, [RECIPE_KEY])
    check_fit(path, tensors, build_model(recipe.model, recipe.data.spec(), device="meta").state_dict())
    model = build_model(recipe.model, recipe.data.spec(), device=device)
    _copy_into(model, tensors, path)
    return model.eval()


def load_model(run: RunFolder, *, device: torch.device | str = "cpu") -> nn.Module:
    """Return the trained network of a run, in evaluation mode; that of the user's own code comes from `run.network`."""
    if run.network is None or not isinstance(run.recipe.model, OwnArchitecture):
        return trained_model(run.weights, run.recipe, device=device)
    model = run.network()
    if not isinstance(model, nn.Module):
        raise BronetError(f"the network of {run.path} must be a torch.nn.Module, got {type(model).__name__}")
    load_weights(run.weights, model)
    return model.to(device).eval()


def fitting(tensors: Mapping[str, Tensor], state: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return tensors read from `path` in the dtypes of a model's state; other names, shapes and values are refused."""
    check_fit(path, tensors, state)
    cast = {name: tensor.to(state[name].dtype) for name, tensor in tensors.items()}
    for name, tensor in cast.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise BronetError(f"{name} in {path} must be finite in {tensor.dtype}, but it holds NaN or infinity")
    return cast


def require_ordinary(tensors: Mapping[str, Tensor], where: Path | str) -> None:
    """Raise where a tensor is sparse, quantised, of numbers that no file holds, or smaller in memory than its shape."""
    for name, tensor in tensors.items():
        is_odd = tensor.is_nested or tensor.layout is not torch.strided or tensor.is_meta
        if is_odd or tensor.dtype not in STORED or tensor.untyped_storage().nbytes() < tensor.nbytes:
            must = "must be an ordinary tensor of numbers, one in memory for each entry"
            raise BronetError(f"{name!s:.80} in {where} {must}")


@torch.no_grad()
def _copy_into(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy tensors, read from `path`, into the model's parameters and buffers, all or none."""
    state = model.state_dict()
    fitted = fitting(tensors, state, path)
    for name, tensor in fitted.items():
        state[name].copy_(tensor)
    # A model of the user's own code may return copies from state_dict(), or one tensor under two names.
    for name, tensor in model.state_dict().items():
        if not torch.equal(tensor, fitted[name].to(tensor.device)):
            raise BronetError(f"{name} of {type(model).__name__} must take its numbers in {path}, but it has others")


def check_fit(path: Path, tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Refuse tensors, read from `path`, of other names, shapes or kinds of number than those that are wanted."""
    if missing := wanted.keys() - tensors.keys():
        raise BronetError(f"{path} lacks {len(missing)} tensors that it must hold, the first is {min(missing)}")
    if extra := tensors.keys() - wanted.keys():
        raise BronetError(f"{path} holds {len(extra)} tensors that do not belong there, the first is {min(extra)}")
    for name, found in tensors.items():
        shape, dtype = wanted[name].shape, wanted[name].dtype
        if found.shape != shape:
            raise BronetError(f"{name} in {path} must have shape {tuple(shape)}, got {tuple(found.shape)}")
        if found.is_floating_point() != dtype.is_floating_point:
            raise BronetError(f"{name} in {path} must hold {dtype} numbers, got {found.dtype}")


def write_tensors(path: Path, kind: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write the tensors and the metadata as a file of this kind; an existing file is replaced as a whole."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # One entry only: safetensors writes several in random order, and equal runs should give equal bytes.
    header = {FORMAT_KEY: json.dumps({"kind": kind, **metadata})}

    def write(temporary: Path) -> None:
        try:
            save_file(plain, temporary, metadata=header)
        except SafetensorError as error:  # safetensors reports the system's errors as its own
            raise OSError(str(error)) from None

    replace_file(path, write)


def read_tensors(
    path: Path, kind: str, keys: Iterable[str], *, device: torch.device | str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors, on `device`, and the metadata of a file of this kind; all `keys` are present.

    The "meta" device reads no tensors at all.
    """
    header: Json = {}
    try:
        with safe_open(path, framework="pt") as file:
            with suppress(BronetError):  # text of another program
                header = read_object(path, text=(file.metadata() or {}).get(FORMAT_KEY, "{}"))
            names = [] if str(device) == "meta" else list(file.keys())
            tensors = {name: file.get_tensor(name).to(device) for name in names}
    except FileNotFoundError:
        raise BronetError(f"{kind} {path} does not exist; give the folder of a run that has one") from None
    except (SafetensorError, OSError) as error:
        fault = f"it is damaged, cut short or of another kind ({error})"
        raise BronetError(f"{path} must be a bronet {kind} file, but {fault}") from None
    metadata = {key: value for key, value in header.items() if isinstance(value, str)}
    if metadata.get("kind") != kind or not set(keys) <= metadata.keys():
        raise BronetError(f"{path} must be a bronet {kind} file, but it holds something else")
    return tensors, metadata
