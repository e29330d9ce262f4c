"""Does a module compute what its type says? A proof cannot see hooks, nor forwards that came after it."""

from torch import nn
from torch.nn.modules import module as torch_module

from bronet.errors import BronetError
from bronet.layers.base import LipschitzLayer
from bronet.layers.convolution import Convolution


def is_altered(module: nn.Module) -> bool:
    """Whether a module may do something other than its type says: a hook or another method stands in its way.

    Hooks of torch.nn.utils do not count, as they only make the weights, such as those of `spectral_norm`.
    """
    before = [hook for hook in module._forward_pre_hooks.values() if not _is_of_torch(hook)]
    return bool(before or module._forward_hooks or has_global_hooks()) or _replaces_a_method(module)


def has_global_hooks() -> bool:
    """Whether torch calls a hook around the forward pass of every module."""
    return bool(torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks)


def overrides_forward(module: nn.Module) -> bool:
    """Whether a Lipschitz layer's forward was defined anew below the class whose proof it inherits."""
    kind = type(module)
    if isinstance(module, Convolution) and _place(kind, "convolve") < _place(kind, "proved_convolve", "proved"):
        return True
    return isinstance(module, LipschitzLayer) and _place(kind, "forward") < _place(kind, "proved", "proved_head")


def require_faithful(module: nn.Module) -> None:
    """Raise where a module or a part of it has hooks, a replaced method, or a forward that its proof does not know."""
    if has_global_hooks():
        raise BronetError("torch's global module hooks must be removed for a proof, which could not see what they do")
    for path, part in module.named_modules():
        if is_altered(part) or part._forward_pre_hooks:
            raise BronetError(
                f"forward of {path or type(part).__name__} must be its class's own, got one with hooks or replaced; "
                "a certificate could not see what it does"
            )
        if overrides_forward(part):
            raise BronetError(
                f"{type(part).__name__} must define `proved` beside its own forward, got the proof of a class above it"
            )


def _replaces_a_method(module: nn.Module) -> bool:
    """Whether a method of the class is hidden by an attribute of the instance, or torch's way of calling by another."""
    kind = type(module)
    hidden = any(callable(getattr(kind, name, None)) for name in vars(module))
    return hidden or (kind.__call__, kind._call_impl) != (nn.Module.__call__, nn.Module._call_impl)


def _place(kind: type, *names: str) -> int:
    """Return how many classes up a method is defined, the first of these names that is found."""
    return next(n for n, above in enumerate(kind.__mro__) if any(name in vars(above) for name in names))


def _is_of_torch(hook: object) -> bool:
    return type(hook).__module__.startswith("torch.nn.utils.")
