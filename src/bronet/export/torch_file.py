"""The torch.export form: a .pt2 archive with the metadata as a JSON file inside it (`extra_files`)."""

import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram

from bronet.export.facts import ExportFacts

FACTS_FILE = "bronet.json"


def write_torch(path: Path, program: ExportedProgram, facts: ExportFacts) -> None:
    """Write the program and its facts to `path`."""
    text = json.dumps({key: json.loads(value) for key, value in facts.as_text().items()}, indent=2)
    archive = io.BytesIO()  # torch ends the process where its writer meets a full disk
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch.export warns of parts of torch
        torch.export.save(program, archive, extra_files={FACTS_FILE: text})
    path.write_bytes(archive.getbuffer())


def torch_runner(path: Path) -> Callable[[Tensor], Tensor]:
    """Return the file as a function of images."""
    with warnings.catch_warnings(), path.open("rb") as file:
        warnings.simplefilter("ignore", FutureWarning)
        return torch.export.load(file).module()
