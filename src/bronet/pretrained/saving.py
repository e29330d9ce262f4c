"""Trained weights as a pretrained folder, and such a folder as a run again.

Weights are rounded to bf16 before anything is proved of them. Any values of the parameters give layers with proved
bounds, so rounding costs accuracy (a little) and never soundness, as long as the certificate is made from the rounded
weights. Kernels and matrices become bf16; vectors (biases, means, alpha) stay as they are: they are small, and a
rounded mean would shift every activation.

A record is published without what belongs to one machine only: an absolute path in a command becomes its last part.
"""

import re
from dataclasses import replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from tempfile import TemporaryDirectory

import torch
from torch import nn

from bronet.errors import BronetError
from bronet.files import Json, replace_bytes, replace_text
from bronet.graph.trace import unwrapped
from bronet.models import Network
from bronet.pretrained.network import WEIGHTS, PretrainedConfig, TrainedNetwork, check_weights, class_names, config_text
from bronet.pretrained.places import CONFIG, hugging_face
from bronet.recipe import named_recipe
from bronet.recipe.architecture import OwnArchitecture
from bronet.recipe.schema import DATASETS, DataRecipe, Recipe
from bronet.recipe.text import differing_keys
from bronet.run.certificate import file_hash
from bronet.run.folder import RunFolder, create_run, open_run
from bronet.run.weights import load_model, save_weights

ABSOLUTE = re.compile(r"(?<![\w.:/\\-])(?:/[^\s'\"=,;]+|[A-Za-z]:\\[^\s'\"=,;]+)")
UNKNOWN_TRAINING: Json = {"trained": "elsewhere; of the recipe only data and model are of this network"}


def save_pretrained(network: nn.Module | RunFolder | Path | str, folder: Path | str) -> Path:
    """Write a network, or that of a run, as model.safetensors (rounded to bf16) and config.json; return the folder.

    A model must be one of the package's; of your own, `bronet.save_run` writes a run. A folder with a run in it is
    refused. The configuration is written last, and names the weights by their hash.
    """
    folder = Path(folder)
    if RunFolder(folder).recipe_file.exists():
        raise BronetError(f"a pretrained network needs a folder of its own, got the run {folder}; choose another")
    model: nn.Module
    if isinstance(network, nn.Module):
        model = packaged = unwrapped(network)
        if not isinstance(packaged, Network):
            raise BronetError(
                f"a pretrained network must be one of the package's, got a {type(model).__name__}; "
                "of a network of your own, bronet.save_run writes a run"
            )
        recipe, record, names = recipe_of(packaged), UNKNOWN_TRAINING, packaged.classes
    else:
        run = open_run(network)
        model, recipe, record, names = load_model(run), run.recipe, published_record(run.read_record()), run.classes()
    if isinstance(recipe.model, OwnArchitecture):
        raise BronetError(f"a pretrained network must be one of the package's, got your own {recipe.model.name}")
    save_rounded(folder / WEIGHTS, model, recipe=recipe)
    spec = recipe.data.spec()
    config = PretrainedConfig(
        recipe=recipe,
        dataset=spec,
        classes=names or class_names(spec),
        weights_sha256=file_hash(folder / WEIGHTS),
        record=record,
    )
    replace_text(folder / CONFIG, config_text(config))
    return folder


def recipe_of(model: Network) -> Recipe:
    """Return a recipe for a network of the package, of whose training nothing is known."""
    spec = model.spec
    sides = (spec.channels, spec.height, spec.width, spec.classes) if spec.name not in DATASETS else (0, 0, 0, 0)
    channels, height, width, classes = sides
    data = DataRecipe(name=spec.name, channels=channels, height=height, width=width, classes=classes)
    return replace(named_recipe("digits/quickstart"), name=type(model).__name__, data=data, model=model.architecture)


def push_to_hub(network: nn.Module | RunFolder | Path | str, repo_id: str, *, private: bool = False) -> str:
    """Upload what `save_pretrained` writes to the Hugging Face hub, and return its address; needs bronet[hub].

    `load_pretrained("hf:owner/name")` reads it again.
    """
    with TemporaryDirectory() as folder:
        save_pretrained(network, folder)
        with hugging_face(repo_id) as hub:
            hub.create_repo(repo_id, private=private, exist_ok=True)
            return str(hub.upload_folder(repo_id=repo_id, folder_path=folder))


def save_rounded(path: Path, model: nn.Module, *, recipe: Recipe) -> None:
    """Write the weights with the recipe, tensors with two or more dimensions as bf16, the others unchanged.

    Rounding twice gives the same bytes as rounding once.
    """
    rounded = {
        name: tensor.to(torch.bfloat16) if tensor.ndim > 1 and tensor.is_floating_point() else tensor
        for name, tensor in model.state_dict().items()
    }
    save_weights(path, rounded, recipe=recipe)


def unpack(network: TrainedNetwork, out: Path) -> RunFolder:
    """Return a run folder with the network's recipe, record and weights; one that holds them already is kept.

    One that was interrupted before its weights were there is completed.
    """
    check_weights(network)
    run = RunFolder(out)
    if run.recipe_file.exists():
        if not _is_of(run, network):
            raise BronetError(f"--out must be new or hold {network.name}, got {out} with another run; choose another")
        if run.weights.exists():
            return run
    else:
        create_run(out, network.recipe)
    run.write_record({**network.record, "pretrained": network.name})
    replace_bytes(run.weights, network.weights.read_bytes())
    return run


def _is_of(run: RunFolder, network: TrainedNetwork) -> bool:
    """Whether a run folder holds the network, or the beginning of it: neither other weights nor any training."""
    if differing_keys(run.recipe, network.recipe):
        return False
    if run.weights.exists():
        return file_hash(run.weights) == file_hash(network.weights)
    return not (run.log.exists() or run.checkpoint.exists())


def published_text(text: str) -> str:
    """Return a text with each absolute path replaced by its last part."""

    def last_part(match: re.Match[str]) -> str:
        path = PurePosixPath(match[0]) if match[0].startswith("/") else PureWindowsPath(match[0])
        return path.name or match[0]

    return ABSOLUTE.sub(last_part, text)


def published_record(record: Json) -> Json:
    """Return a record, published."""
    return {key: published_text(value) if isinstance(value, str) else value for key, value in record.items()}
