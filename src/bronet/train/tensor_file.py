"""Named tensors and text metadata in one safetensors file, written atomically and read without trust.

The format holds numbers and text only, so reading a file from anywhere can never run code. A file that is
truncated, foreign or of another kind is refused in one line.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bronet.atomic import replace_file
from bronet.errors import BronetError

FORMAT_KEY = "bronet"


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


def read_metadata(path: Path, kind: str, keys: Iterable[str]) -> dict[str, str]:
    """Return the metadata of a file of this kind; all `keys` are present."""
    return read_tensors(path, kind, keys, device="meta")[1]


def read_tensors(
    path: Path, kind: str, keys: Iterable[str], *, device: torch.device | str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors, on `device`, and the metadata of a file of this kind; all `keys` are present.

    The "meta" device reads no tensors at all.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = _parse((file.metadata() or {}).get(FORMAT_KEY, "{}"))
            names = [] if str(device) == "meta" else list(file.keys())
            tensors = {name: file.get_tensor(name).to(device) for name in names}
    except FileNotFoundError:
        raise BronetError(f"{kind} {path} does not exist; give the folder of a run that has one") from None
    except (SafetensorError, OSError) as error:
        raise BronetError(
            f"{path} must be a bronet {kind} file, but it is damaged, cut short or of another kind ({error})"
        ) from None
    if metadata.get("kind") != kind or not set(keys) <= metadata.keys():
        raise BronetError(f"{path} must be a bronet {kind} file, but it holds something else")
    return tensors, metadata


def _parse(text: str) -> dict[str, str]:
    """Return the text entries of a JSON object; none if it is anything else."""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(entries, dict):
        return {}
    return {key: value for key, value in entries.items() if isinstance(value, str)}


def check_names(path: Path, found: Iterable[str], wanted: Iterable[str]) -> None:
    """Refuse a file that lacks a wanted tensor or holds another one."""
    found, wanted = set(found), set(wanted)
    if missing := wanted - found:
        raise BronetError(f"{path} lacks {len(missing)} tensors of this model, the first is {min(missing)}")
    if extra := found - wanted:
        raise BronetError(f"{path} holds {len(extra)} tensors this model has not, the first is {min(extra)}")


def check_shape(path: Path, name: str, found: Tensor, wanted: Tensor) -> None:
    """Refuse a tensor of another shape, or of another kind of number."""
    if found.shape != wanted.shape:
        raise BronetError(f"{name} in {path} must have shape {tuple(wanted.shape)}, got {tuple(found.shape)}")
    if found.is_floating_point() != wanted.is_floating_point():
        raise BronetError(f"{name} in {path} must hold {wanted.dtype} numbers, got {found.dtype}")
