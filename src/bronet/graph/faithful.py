"""Before a model is read: is it the model itself, and is its forward what its classes say?

Hooks, replaced methods and torch modes are no part of a trace, so they are refused here.
"""

from torch import fx, nn
from torch.nn.modules import module as torch_module
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from bronet.errors import BronetError
from bronet.layers.activation import Block
from bronet.layers.base import LipschitzLayer
from bronet.layers.convolution import Convolution

_WRAPPERS = (DataParallel, DistributedDataParallel, AveragedModel)


class UnreadableError(BronetError):
    """A model whose forward cannot be known: hooks, replaced methods, control that depends on activations."""


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model that torch.compile, data parallelism or an average of weights has wrapped, or the model."""
    if not isinstance(model, nn.Module):
        raise BronetError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    inner = getattr(model, "_orig_mod", model)  # of torch.compile, whose class is slow to import
    if isinstance(inner, _WRAPPERS):
        inner = inner.module
    return inner if inner is model else unwrapped(inner)


def require_faithful(module: nn.Module) -> None:
    """Raise where a module or a part of it has hooks, a replaced method, or a forward that its proof does not know."""
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        raise UnreadableError("torch's global module hooks must be removed for a proof, which cannot see what they do")
    for mode in (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()):
        if not isinstance(mode, DeviceContext):
            raise UnreadableError(f"no torch mode must be active while a proof is made, got {type(mode).__name__}")
    for path, part in module.named_modules():
        if part._forward_hooks or part._forward_pre_hooks or _replaces_a_method(part):
            raise UnreadableError(
                f"forward of {path or type(part).__name__} must be its class's own, got one with hooks or replaced; "
                "a certificate could not see what it does"
            )
        if _overrides_forward(part):
            raise UnreadableError(
                f"{type(part).__name__} must define `proved` beside its own forward, got the proof of a class above it"
            )
    devices = {tensor.device for tensor in (*module.parameters(), *module.buffers())}
    if len(devices) > 1:
        raise UnreadableError(f"a model must be on one device to be proved, got {', '.join(sorted(map(str, devices)))}")


def _replaces_a_method(module: nn.Module) -> bool:
    """Whether a method of the class is hidden by an attribute of the instance, or torch's way of calling by another.

    A GraphModule's way of calling is of torch.fx's making.
    """
    kind = type(module)
    hidden = any(callable(getattr(kind, name, None)) for name in vars(module))
    calls = (nn.Module.__call__, nn.Module._call_impl)
    return hidden or (not isinstance(module, fx.GraphModule) and (kind.__call__, kind._call_impl) != calls)


def _overrides_forward(module: nn.Module) -> bool:
    """Whether a forward was defined anew below the class whose proof it inherits, that of a block below its parts'."""

    def place(*names: str) -> int:
        return next(n for n, above in enumerate(kind.__mro__) if any(name in vars(above) for name in names))

    kind = type(module)
    if isinstance(module, Block) and kind.forward is not Block.forward:
        return True
    if isinstance(module, Convolution) and place("convolve") < place("proved_convolve", "proved"):
        return True
    return isinstance(module, LipschitzLayer) and place("forward") < place("proved")
