"""A trained model in one file: the weights, and the recipe that says which network they belong to.

Weights may be stored in another floating dtype than the model's: any values give 1-Lipschitz layers, and a
certificate is about the weights as loaded.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.models import CertifiableModel, build_model
from bronet.recipe.architecture import Architecture, BRONetArchitecture, LipConvNetArchitecture
from bronet.recipe.schema import Recipe
from bronet.recipe.text import from_text, to_text
from bronet.train.sharding import cut, gathered, part_of
from bronet.train.tensor_file import check_names, check_shape, read_metadata, read_tensors, write_tensors

KIND = "weights"
RECIPE_KEY = "recipe"


def save_weights(path: Path, model: nn.Module, *, recipe: Recipe, writes: bool = True) -> None:
    """Write the model's parameters and buffers with the recipe, atomically.

    Of a run's processes one `writes`; where the model is sharded, all must call this.
    """
    state = gathered(model.state_dict(), kept=writes)
    if writes:
        write_tensors(path, KIND, state, {RECIPE_KEY: to_text(recipe)})


def read_recipe(path: Path) -> Recipe:
    """Return the recipe stored with the weights, without reading the weights."""
    return from_text(read_metadata(path, KIND, [RECIPE_KEY])[RECIPE_KEY])


def load_weights(path: Path, model: nn.Module) -> None:
    """Copy stored weights into the model; names, shapes and values are checked before anything changes."""
    tensors, _ = read_tensors(path, KIND, [RECIPE_KEY])
    copy_into(model, tensors, path)


def trained_model(path: Path, recipe: Recipe, *, device: torch.device | str = "cpu") -> CertifiableModel:
    """Return the network of a recipe with stored weights, in evaluation mode.

    A recipe may name a network of any size: nothing of its size is built before the file is known to hold it.
    """
    tensors, _ = read_tensors(path, KIND, [RECIPE_KEY])
    if (layers := _least_layers(recipe.model)) > len(tensors):
        raise BronetError(f"{path} must hold a tensor for each of the {layers} layers, got {len(tensors)}")
    _check_fit(path, tensors, _outline(recipe))
    model = build_model(recipe.model, recipe.data.spec(), device=device)
    copy_into(model, tensors, path)
    return model.eval()


def _outline(recipe: Recipe) -> dict[str, Tensor]:
    """Return the tensors of a recipe's network without their numbers."""
    try:
        return build_model(recipe.model, recipe.data.spec(), device="meta").state_dict()
    except (RuntimeError, OverflowError, TypeError) as error:  # sizes beyond 64 bits
        reason = str(error).partition("\n")[0]
        raise BronetError(f"the network of {recipe.name} must be of a size that can be built ({reason})") from None


def _least_layers(architecture: Architecture) -> int:
    """Return how many layers with parameters an architecture has at least."""
    match architecture:
        case BRONetArchitecture():
            return architecture.depth + architecture.dense_depth + architecture.regularized_depth
        case LipConvNetArchitecture():
            return architecture.depth
        case _:
            return len(architecture.widths)


@torch.no_grad()
def copy_into(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Copy tensors, read from `path`, into the model's parameters and buffers, all or none."""
    state = model.state_dict()
    _check_fit(path, tensors, state)
    tensors = {name: tensor.to(state[name].dtype) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise BronetError(f"{name} in {path} must be finite in {tensor.dtype}, but it holds NaN or infinity")
    for name, tensor in tensors.items():
        part_of(state[name]).copy_(cut(tensor, state[name]))


def _check_fit(path: Path, tensors: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    """Refuse tensors of other names or shapes than a model's."""
    check_names(path, tensors, state)
    for name, tensor in tensors.items():
        check_shape(path, name, tensor, state[name])
