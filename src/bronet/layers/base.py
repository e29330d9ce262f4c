"""What every layer offers: one forward, a bound on its Lipschitz constant, and a proof for certificates.

Layers act on dimension 1 of their input, whether it is (b, c, h, w) or (b, d).
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, fx, nn

from bronet.errors import BronetError
from bronet.ortho.products import product as matrix_product
from bronet.proof.proved_map import ProvedMap

M = TypeVar("M", bound=nn.Module)
Device = torch.device | str | None
IMAGE_AXES = 3  # channel, height, width


def one_operation(forward: Callable[[M, Tensor], Tensor]) -> Callable[[M, Tensor], Tensor]:
    """Wrap a forward so that every tracer of torch.fx records the layer as one operation and does not look inside."""

    @functools.wraps(forward)
    def wrapped(self: M, x: Any) -> Any:
        if not isinstance(x, fx.Proxy):
            return forward(self, x)
        tracer: Any = x.tracer
        if self is tracer.root:
            raise BronetError(f"a {type(self).__name__} alone has no graph; trace a model that contains it")
        return tracer.create_proxy("call_module", tracer.path_of_module(self), (x,), {})

    return wrapped


def _after(check: Callable[[Any, Any], None], method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def checked(self: "LipschitzLayer", given: Any) -> Any:
        check(self, given)
        return method(self, given)

    return checked


class LipschitzLayer(nn.Module, ABC):
    """A layer with a proved Lipschitz constant.

    Where a layer says how many `input_channels` it takes, what its `forward` and `proved` are given is checked before.

    `recordable` says whether a training step with it can be recorded as a CUDA graph: layers whose factorisations wait
    for the host cannot. `only_regularized` says whether nothing but a loss that sees its estimate keeps the layer's
    constant small. `forward_uses_estimate` says whether the forward pass reads what `update_estimate` writes, so
    that the two must not run side by side. `parameter_methods` names the methods besides the forward pass that read
    parameters while training: where those are sharded over processes, they are gathered for each of them.
    """

    input_channels: int | None = None
    takes_images_only: bool = False
    recordable: ClassVar[bool] = True
    only_regularized: ClassVar[bool] = False
    forward_uses_estimate: ClassVar[bool] = False
    parameter_methods: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "forward" in vars(cls):
            checked = _after(lambda layer, x: layer.check_input(x), cls.forward)
            cls.forward = one_operation(checked)  # type: ignore[method-assign]
        if "proved" in vars(cls):
            checked = _after(lambda layer, shape: layer.check_shape(shape), cls.proved)
            cls.proved = checked  # type: ignore[method-assign]

    def check_input(self, x: Tensor) -> None:
        """Raise unless x has the channels that the layer takes in dimension 1, and no dimension is empty."""
        layer, channels, shape = type(self).__name__, self.input_channels, tuple(x.shape)
        if channels is None:
            return
        if x.ndim < 2 or x.shape[1] != channels:
            raise BronetError(f"{layer} expects {channels} channels in dimension 1, got an input of shape {shape}")
        if self.takes_images_only and x.ndim != 1 + IMAGE_AXES:
            raise BronetError(f"{layer} expects images (b, c, h, w), got an input of shape {shape}")
        if not x.is_floating_point():  # which products would round to whole numbers
            raise BronetError(f"{layer} expects floating point, got {x.dtype}; convert the input first")
        if x.numel() == 0:
            raise BronetError(f"{layer} needs at least one image and one pixel, got an input of shape {shape}")

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless one image's activations of this shape have the channels that the layer takes."""
        layer, channels, only_images = type(self).__name__, self.input_channels, self.takes_images_only
        if channels is None:
            return
        if not shape or shape[0] != channels or min(shape) < 1 or (only_images and len(shape) != IMAGE_AXES):
            wanted = f"images of {channels} channels" if only_images else f"{channels} channels"
            raise BronetError(f"{layer} expects {wanted}, got activations of shape {shape}")

    @abstractmethod
    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        """Return the float64 map of this layer for one image's activations of `shape`, with its proved bounds."""

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        """Return an upper bound on the Lipschitz constant for images of this size.

        Layers whose bound does not depend on the size ignore it. By default it is that of vectors: a layer that mixes
        pixels defines its own.
        """
        if self.input_channels is None or self.takes_images_only:
            raise TypeError(f"{type(self).__name__} must define lipschitz_bound, which may depend on the image size")
        return self.proved((self.input_channels,)).lipschitz

    def lipschitz_estimate(self) -> Tensor | float:
        """Return the constant as training sees it: differentiable, and no bound where a layer is only regularised."""
        return 1.0

    def update_estimate(self, steps: int) -> None:
        """Improve what `lipschitz_estimate` returns; layers that are 1-Lipschitz by construction have nothing to do."""


class OneLipschitz(LipschitzLayer):
    """A layer that is 1-Lipschitz whatever its parameters, on images of every size."""

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        return 1.0


class Fixed(OneLipschitz):
    """A layer without parameters: a 1-Lipschitz function, which proofs apply as well."""

    @abstractmethod
    def function(self) -> Callable[[Tensor], Tensor]:
        """Return the function; it holds on to plain numbers alone, as the layer could change after a proof."""

    def rounding(self) -> tuple[float, float]:
        """Return gain and offset of the function; by default it only moves or compares numbers."""
        return 0.0, 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.function()(x)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        function = self.function()
        output = function(torch.zeros(1, *shape, device="cpu"))
        return ProvedMap(function, tuple(output.shape[1:]), 1.0, *self.rounding())


def without_autocast(device: str) -> AbstractContextManager[None]:
    """Return a context without autocast on this type of device; outside autocast it leaves no trace in a graph."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def to_autocast(x: Tensor) -> Tensor:
    """Return x in the precision of autocast, where it is on, for layers that do their products outside of it."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def like_input(weights: Tensor, x: Tensor) -> Tensor:
    """Return derived weights in the precision of x; under autocast as they are, as it rounds them at every product."""
    return weights if torch.is_autocast_enabled(x.device.type) else weights.to(x.dtype)


def require_counts(**sizes: int) -> None:
    """Raise unless every size is a whole number of at least one; a pair, which torch's layers take, is none."""
    for name, value in sizes.items():
        if type(value) is not int or value < 1:
            raise BronetError(f"{name} must be a whole number of at least 1, got {value!r}")


def require_ridge(ridge: float) -> None:
    """Raise unless a relative ridge is a number from 0 to 1."""
    if isinstance(ridge, bool) or not isinstance(ridge, (int, float)) or not 0 <= ridge <= 1:
        raise BronetError(f"ridge must be a number from 0 to 1, got {ridge!r}")


def reflected_rank(rank: int | None, c_in: int, c_out: int) -> int:
    """Return n, the number of directions that a reflector of m = max(c_in, c_out) channels reflects: 1 <= n < m.

    By default half of the channels, or min(c_in, c_out) where they differ. With n = m every reflector would be -I.
    """
    m = max(c_in, c_out)
    if m == 1:
        raise BronetError(
            "a reflector needs 2 channels at least, in or out, in each group; of one it is the identity or its negative"
        )
    n = rank if rank is not None else (max(1, m // 2) if c_in == c_out else min(c_in, c_out))
    if type(n) is not int or not 1 <= n < m:
        raise BronetError(f"rank must satisfy 1 <= n < m = {m}, got n = {n!r}")
    return n


def checked_shape(shape: Sequence[int], name: str = "input_shape") -> tuple[int, ...]:
    """Return the shape of an image as a tuple, or raise where it is none."""
    sizes = tuple(shape) if isinstance(shape, Sequence) else ()
    if not sizes or not all(type(size) is int and size > 0 for size in sizes):
        raise BronetError(f"{name} must be sizes of at least 1, such as (3, 32, 32), got {shape!r}")
    return sizes


# Up to so many images a CPU multiplies them as rows: a product with few columns takes five times as long.
FEW_IMAGES = 15


def apply_to_channels(W: Tensor, x: Tensor) -> Tensor:
    """Return W applied to dimension 1 of x."""
    if x.device.type == "cpu" and not torch.compiler.is_compiling() and len(x) <= FEW_IMAGES:
        return (x.movedim(1, -1) @ W.mT).movedim(-1, 1)
    return batch_first(matrix_product(W, batch_last(x)))


def batch_last(x: Tensor) -> Tensor:
    """Return a view of (b, c, ...) as (..., c, b): the memory order in which layers hand activations on."""
    return x.permute(*range(2, x.ndim), 1, 0)


def batch_first(x: Tensor) -> Tensor:
    """Return a view of (..., c, b) as (b, c, ...)."""
    return x.permute(-1, -2, *range(x.ndim - 2))
