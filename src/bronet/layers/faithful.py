"""Does a module compute what its type says? A proof cannot see hooks, nor forwards that came after it."""

from torch import nn

from bronet.errors import BronetError
from bronet.layers.base import LipschitzLayer


def is_altered(module: nn.Module) -> bool:
    """Whether a module may do something else than its type says: a hook or an attribute stands before its forward.

    Hooks of torch.nn.utils only make the weights, such as those of `spectral_norm`.
    """
    before = [hook for hook in module._forward_pre_hooks.values() if not _is_of_torch(hook)]
    return bool(before or module._forward_hooks) or "forward" in vars(module)


def overrides_forward(module: nn.Module) -> bool:
    """Whether a Lipschitz layer's forward was defined anew below the class whose proof it inherits."""
    kind = type(module)
    return isinstance(module, LipschitzLayer) and _place(kind, "forward") < _place(kind, "proved", "proved_head")


def require_faithful(module: nn.Module) -> None:
    """Raise where a module or a part of it has hooks, a replaced forward, or one that its proof does not know."""
    for path, part in module.named_modules():
        if is_altered(part):
            raise BronetError(
                f"forward of {path or type(part).__name__} must be its class's own, got one with hooks or replaced; "
                "a certificate could not see what it does"
            )
        if overrides_forward(part):
            raise BronetError(
                f"{type(part).__name__} must define `proved` beside its own forward, got the proof of a class above it"
            )


def _place(kind: type, *names: str) -> int:
    """Return how many classes up a method is defined, the first of these names that is found."""
    return next(n for n, above in enumerate(kind.__mro__) if any(name in vars(above) for name in names))


def _is_of_torch(hook: object) -> bool:
    return type(hook).__module__.startswith("torch.nn.utils.")
