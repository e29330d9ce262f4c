"""Runs of networks of the user's own code: saved from Python, and opened again with code that the user names.

A run's folder tells the name of its network, for people. Code comes from `--model package.module:Net` alone, that is,
from what the user could import anyway; nothing that lies in the folder is ever imported, and a name in it never is.
"""

import copy
import importlib
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bronet.data.load import recipe_for
from bronet.errors import BronetError
from bronet.graph.model import evaluating
from bronet.graph.trace import unwrapped
from bronet.recipe.architecture import OwnArchitecture, check_import_path
from bronet.recipe.schema import DATASETS, DataRecipe, LossRecipe, OptimRecipe, Recipe, TrainRecipe
from bronet.run.folder import RunFolder, create_run
from bronet.run.weights import fitting, require_ordinary, save_weights

UNUSED_RATE = 1e-3
"""A recipe must have a learning rate; without epochs it is unused."""
MAIN = "__main__"


def save_run(
    model: nn.Module,
    folder: Path | str,
    *,
    dataset: str | Path | DataRecipe = "digits",
    import_path: str | None = None,
    overwrite: bool = False,
) -> RunFolder:
    """Write a trained network of your own as a run, which `bronet certify FOLDER --model package.module:Net` takes.

    So do report, verify, attack, export, serve, check and info. The folder holds the weights and the name of the class,
    never code.

    Args:
        model: any module whose forward `bronet.check` can follow; it is left as it was.
        folder: a new one; with `overwrite` an earlier run in it is replaced.
        dataset: a known data set, or a folder with train and test (or val) below it, each with a folder per class.
        import_path: of a class or a function that makes such a network when it is called without arguments, as
            "package.module:name"; by default that of the model's class.
        overwrite: replace an earlier run.
    """
    model = unwrapped(model)
    data, classes = recipe_for(dataset)
    architecture = own_architecture(model, import_path)
    if import_path is None:
        _require_made_by_class(model)
    state = stored_state(model)
    _require_logits(model, data)
    recipe = Recipe(
        name=type(model).__name__,
        data=data,
        model=architecture,
        loss=LossRecipe(),
        optim=OptimRecipe(lr=UNUSED_RATE),
        train=TrainRecipe(epochs=0, batch_size=1),
    )
    run = create_run(Path(folder), recipe, overwrite=overwrite, advice="overwrite=True replaces it")
    save_weights(run.weights, state, recipe=recipe)
    if data.name not in DATASETS:
        run.write_record({"classes": list(classes)})
    return replace(run, network=lambda: copy.deepcopy(model))


def own_architecture(model: nn.Module, import_path: str | None) -> OwnArchitecture:
    """Return what a recipe tells of a network: the name given, or where its class can be imported from."""
    if import_path is not None:
        check_import_path(import_path, name="import_path")
        return OwnArchitecture(name=import_path)
    kind = type(model)
    file = getattr(sys.modules.get(MAIN), "__file__", None) if kind.__module__ == MAIN else None
    module = Path(file).stem if file else kind.__module__
    try:
        return OwnArchitecture(name=f"{module}:{kind.__qualname__}")
    except BronetError:
        must = f"must say where {kind.__qualname__} can be imported from, as package.module:name"
        raise BronetError(f"import_path {must}; a class inside a function has no such name") from None


def stored_state(model: nn.Module) -> dict[str, Tensor]:
    """Return a network's parameters and buffers, each with memory of its own; other than finite numbers are refused."""
    state = model.state_dict(keep_vars=True)
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise BronetError(f"state_dict of a network must hold tensors only, got {type(value).__name__} as {name}")
        if is_lazy(value):
            raise BronetError(f"{name} of {type(model).__name__} must have numbers; call the network on images once")
    where = Path(f"state_dict of {type(model).__name__}")
    require_ordinary(state, where)
    fitting(state, state, where)
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def _require_made_by_class(model: nn.Module) -> None:
    """Raise unless the class, called without arguments, makes a network that takes the model's weights."""
    kind, advice = type(model), "give import_path of a function that makes the network without arguments"
    try:
        with torch.random.fork_rng(devices=[]):
            fresh = kind().state_dict()
    except Exception as error:
        raise BronetError(f"{kind.__name__} must be made without arguments, but: {_told(error)}; {advice}") from None
    if {name: t.shape for name, t in fresh.items()} != {name: t.shape for name, t in model.state_dict().items()}:
        raise BronetError(f"{kind.__name__}() must have the weights of the model, but they differ; {advice}")


@torch.no_grad()
def _require_logits(model: nn.Module, data: DataRecipe) -> None:
    """Raise unless the network takes images of the data set, and gives a logit for every class."""
    spec, like = data.spec(), next((t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()), None)
    if like is None:
        raise BronetError("model must have parameters to be saved, got none")
    try:
        with evaluating(model):
            shape = tuple(model(like.new_zeros(2, *spec.shape)).shape)
    except Exception as error:  # whatever a forward of the user's own raises
        raise BronetError(f"model must take images of {spec.name}, {spec.shape}, but: {_told(error)}") from None
    if shape != (2, spec.classes):
        raise BronetError(f"model must give {spec.classes} logits for an image of {spec.name}, got shape {shape[1:]}")


def with_own_network(run: RunFolder, import_path: str | None) -> RunFolder:
    """Return a run with the network that --model names; another name than the folder's is refused.

    Nothing is imported before the network is needed.
    """
    own = run.recipe.model
    if import_path is None or not isinstance(own, OwnArchitecture):
        return run
    if import_path != own.name:
        raise BronetError(f"--model must be the network that {run.path} is of, {own.name}, got {import_path}")
    return replace(run, network=lambda: made(import_path, outside=run.path))


def made(import_path: str, *, outside: Path) -> Any:
    """Return what the class or function of that name makes, or raise; nothing below the folder is imported."""
    check_import_path(import_path, name="--model")
    module, _, name = import_path.partition(":")
    try:
        return getattr(_imported(module, outside.resolve()), name)()
    except BronetError:
        raise
    except (Exception, SystemExit) as error:
        told = f"--model {import_path} must make a network without arguments, but: {_told(error)}"
        raise BronetError(told) from None


def _imported(module: str, folder: Path) -> object:
    """Import a module, package by package, each only after it is known to lie elsewhere than below the folder."""
    if below := [path for path in map(Path, sys.path) if _is_below(path, folder)]:
        got = f"{below[0].resolve()} is on Python's path"
        raise BronetError(f"--model must not be imported from the run's own folder, but {got}; go to another folder")
    here = str(Path.cwd())
    if here not in sys.path and not _is_below(Path(here), folder):
        sys.path.append(here)  # last, so that nothing there hides what is installed
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        prefix = ".".join(parts[:count])
        spec = find_spec(prefix) if prefix not in sys.modules else sys.modules[prefix].__spec__
        if spec is None:
            raise BronetError(f"--model names {module}, but Python finds no module {prefix} from {here}")
        places = [*([spec.origin] if spec.origin else []), *(spec.submodule_search_locations or [])]
        if any(_is_below(Path(place), folder) for place in places):
            raise BronetError(f"--model must not be imported from the run's own folder, got {prefix} in {folder}")
        importlib.import_module(prefix)
    return sys.modules[module]


def _told(error: BaseException) -> str:
    """Return the kind and the first line of an error of the user's own code."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _is_below(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder)
