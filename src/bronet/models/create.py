"""Networks from the description of an architecture."""

import os
import sys
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from bronet.errors import BronetError
from bronet.graph.model import CertifiableModel
from bronet.models.bronet import BRONet
from bronet.models.lipconvnet import LipConvNet
from bronet.models.lipnext import LipNeXt
from bronet.models.stack import Stack
from bronet.recipe.architecture import (
    Architecture,
    BRONetArchitecture,
    LipConvNetArchitecture,
    LipNeXtArchitecture,
    OwnArchitecture,
    StackArchitecture,
)
from bronet.recipe.schema import DatasetSpec
from bronet.wording import GIB

Network = BRONet | LipConvNet | LipNeXt | Stack


def build_model(
    architecture: Architecture,
    spec: DatasetSpec,
    *,
    seed: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Network:
    """Return the network of an architecture, with the same initial weights for a seed on every device.

    Weights are drawn in torch's default precision and rounded to `dtype`. On the meta device nothing is allocated;
    elsewhere a network that does not fit into this machine's memory is refused before it is built.
    """
    try:
        with torch.device("meta"), _Undrawn():
            outline = _network(architecture, spec)
    except (RuntimeError, OverflowError) as error:  # sizes beyond 64 bits
        reason = str(error).partition("\n")[0]
        raise BronetError(f"the network of {spec.name} must be of a size that can be built ({reason})") from None
    if torch.device(device or "cpu").type == "meta":
        return outline.to(dtype=dtype)
    require_memory(outline)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(seed)
        model = _network(architecture, spec)
    return model.to(device=device, dtype=dtype)


class _Undrawn(TorchFunctionMode):
    """Draw no normal numbers for tensors that hold none: torch would first import its compiler, half a second."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.init.normal_:
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return func(*args, **(kwargs or {}))


def require_memory(model: CertifiableModel, *, copies: int = 1) -> None:
    """Raise if the weights, or several copies of them, are larger than this machine's memory."""
    tensors = (*model.parameters(), *model.buffers())
    needed = copies * sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    held = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if sys.platform != "win32" else needed
    if needed > held:
        what = "weights of the network" if copies == 1 else "weights of the network, gradients and optimiser"
        raise BronetError(
            f"{what} must fit into this machine's {held / GIB:,.1f} GiB of memory, got {needed / GIB:,.1f} GiB; "
            "choose a smaller width or depth"
        )


def _network(architecture: Architecture, spec: DatasetSpec) -> Network:
    match architecture:
        case BRONetArchitecture():
            return BRONet(architecture, spec)
        case LipConvNetArchitecture():
            return LipConvNet(architecture, spec)
        case LipNeXtArchitecture():
            return LipNeXt(architecture, spec)
        case StackArchitecture():
            return Stack(architecture, spec)
        case OwnArchitecture():
            raise BronetError(
                f"a network of your own code must be given, of which {architecture.name} is only the name: "
                "--model package.module:Net on the command line, open_run(folder, network=Net) in Python"
            )
