"""A pretrained network as a run folder, so that everything made for runs works on it.

The package's own folders may not be writable, and are never written to: certificates, attacks and reports go to a run
folder that holds the same weights, byte for byte.
"""

import json
import shutil
from pathlib import Path

from bronet.errors import BronetError
from bronet.files import replace_file, replace_text
from bronet.pretrained.find import TrainedNetwork, check_weights
from bronet.recipe.text import differing_keys
from bronet.run.certificate import file_hash
from bronet.run.folder import RunFolder, create_run


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
    replace_text(run.record, json.dumps({**network.record, "pretrained": network.name}, indent=2) + "\n")

    def copy(temporary: Path) -> None:
        shutil.copyfile(network.weights, temporary)

    replace_file(run.weights, copy)
    return run


def _is_of(run: RunFolder, network: TrainedNetwork) -> bool:
    """Whether a run folder holds the network, or the beginning of it: neither other weights nor any training."""
    if differing_keys(run.recipe, network.recipe):
        return False
    if run.weights.exists():
        return file_hash(run.weights) == file_hash(network.weights)
    return not (run.log.exists() or run.checkpoint.exists())
