"""What every convolution of the library has in common: the same arguments with the same meaning, and one bound.

A kind of convolution says how an image becomes another one and what is proved of it; strides, checks, errors and the
question of the image's size are answered here. `layers.registry` names the kinds.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial, wraps
from typing import Any, ClassVar, Generic, Literal, get_args

import torch
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.layers.base import IMAGE_AXES, Device, checked_shape, require_counts
from bronet.layers.compose import Groups
from bronet.layers.execution import DerivedLayer, K, T
from bronet.layers.shape import dilated, require_multiples, unshuffle
from bronet.proof.proved_map import ProvedMap, up

PaddingMode = Literal["zeros", "circular"]


@dataclass(frozen=True)
class Options:
    """The arguments that only some kinds take, as they were given; see `Convolution`."""

    rank: int | None
    residual_depth: int | None
    hidden_channels: int | None
    keep_padding: bool
    ridge: float | None


def _of_the_parts(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what a kind does with its parameters, so that a convolution in groups has its parts do it."""

    @wraps(method)
    def wrapped(self: Any, *args: Any) -> Any:
        return method(self, *args) if self.parts is None else getattr(self.parts, method.__name__)(*args)

    return wrapped


class Convolution(DerivedLayer[K, T], Generic[K, T]):
    """A Lipschitz layer from images (b, in_channels, h, w) to images of `out_channels`, of any size.

    All kinds share this constructor; a kind refuses what it cannot do. No kind adds a bias to its output: `Bias` and
    `Centring` are layers of their own, and the `bias` of CPL, SLL and Sandwich lies inside of them. The output's memory
    order may be (h, w, c, b), which the next layer reads without a copy: flatten it with `Flatten` or `.reshape`, as
    `.view` may refuse.

    Args:
        in_channels, out_channels: of the images that come in and go out; any two numbers.
        kernel_size: taps per axis, one number for both.
        stride: the output is smaller by this factor. Patches of stride x stride pixels become channels first, so that
            nothing is lost, and images must be multiples of the stride. (The one exception is
            `LipschitzRegularizedConv2d`, an ordinary strided convolution.)
        padding: zeros on each side of the image, after the stride; by default kernel_size // 2.
        padding_mode: "zeros", or "circular" where the image wraps around and `padding` must be left out.
        input_size: height and width of the images before the stride, where they are known: what `lipschitz_bound`
            takes if it is given no size. The layer still takes images of any size.
        rank: n, the directions that a BRO convolution reflects per frequency; see `reflected_rank` for the default.
        residual_depth: L of the kernel I + alpha / sqrt(L) V, for kinds with a residual; none by default.
        hidden_channels: the inner width of CPL and SLL; as wide as the layer by default.
        dilation: pixels from tap to tap, after the stride: the image's dilation x dilation interleaved images are
            convolved one by one.
        groups: so many independent convolutions, each of its part of the channels, as `parts`; `rank` and
            `hidden_channels` are those of each.
        keep_padding: return the padded grid of a BRO convolution instead of cropping it.
        ridge: relative ridge on V*V of a BRO convolution; 1e-7 by default.
    """

    takes_images_only = True
    options: ClassVar[frozenset[str]] = frozenset()
    """Which of the arguments from `rank` on this kind takes."""
    padding_modes: ClassVar[tuple[PaddingMode, ...]] = get_args(PaddingMode)
    least_padding: ClassVar[int | None] = None
    """The least amount of zeros that may be chosen; None where only kernel_size // 2 is possible."""
    needs_odd_kernel: ClassVar[bool] = False
    unshuffles: ClassVar[bool] = True
    """Whether a stride is a pixel unshuffle before the convolution."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        *,
        stride: int = 1,
        padding: int | None = None,
        padding_mode: PaddingMode | None = None,
        input_size: tuple[int, int] | None = None,
        rank: int | None = None,
        residual_depth: int | None = None,
        hidden_channels: int | None = None,
        keep_padding: bool = False,
        ridge: float | None = None,
        dilation: int = 1,
        groups: int = 1,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_counts(in_channels=in_channels, out_channels=out_channels, kernel_size=kernel_size, stride=stride)
        require_counts(dilation=dilation, groups=groups)
        name = type(self).__name__
        if in_channels % groups or out_channels % groups:
            wrong = f"got {groups} for {in_channels} and {out_channels} channels"
            raise BronetError(f"groups of {name} must divide in_channels and out_channels, {wrong}")
        if dilation > 1 and (keep_padding or not self.unshuffles):
            case = " with keep_padding" if keep_padding else ""
            raise BronetError(f"dilation of {name} must be 1{case}, got {dilation}")
        self.dilation = dilation
        if self.needs_odd_kernel and kernel_size % 2 == 0:
            raise BronetError(f"kernel_size of {name} must be odd (its kernel needs a middle tap), got {kernel_size}")
        options = Options(rank, residual_depth, hidden_channels, keep_padding, ridge)
        for option, value in asdict(options).items():
            if option not in self.options and value is not None and value is not False:
                raise BronetError(f"{option} must be left out for a {name}, which has none, got {value!r}")
        self.input_channels = self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size, self.stride = kernel_size, stride
        self.padding_mode = self.padding_modes[0] if padding_mode is None else padding_mode
        if self.padding_mode not in self.padding_modes:
            known = " or ".join(map(repr, self.padding_modes))
            raise BronetError(f"padding_mode of {name} must be {known}, got {padding_mode!r}")
        self.padding = self._checked_padding(padding)
        self.input_size = None if input_size is None else self._checked_size(input_size)
        self.parts: Groups | None = None
        if groups > 1:
            sizes = (in_channels // groups, out_channels // groups, kernel_size)
            shared = {"stride": stride, "dilation": dilation, "device": device, "dtype": dtype, **asdict(options)}
            shared |= {"padding": padding, "padding_mode": padding_mode, "input_size": input_size}
            self.parts = Groups(*(type(self)(*sizes, **shared) for _ in range(groups)))
            return
        self.make_parameters(partial(torch.empty, device=device, dtype=dtype), options)
        self.reset_parameters()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in ("reset_parameters", "lipschitz_estimate", "update_estimate", "extra_repr"):
            if name in vars(cls):
                setattr(cls, name, _of_the_parts(vars(cls)[name]))

    def make_parameters(self, empty: Callable[..., Tensor], options: Options) -> None:
        """Make the parameters, each from `empty(*shape)`; called once, when all else is known and checked.

        By default a kernel, with the residual re-parameterisation if `options` have its depth.
        """
        k = self.kernel_size
        self.own_kernel(empty(self.out_channels, self.inner_channels, k, k), options.residual_depth)

    @_of_the_parts
    def reset_parameters(self) -> None:
        """Start anew: by default at the identity kernel, or near it with the residual re-parameterisation."""
        if self.residual is None:
            nn.init.dirac_(self.weight)
        else:
            nn.init.normal_(self.weight, std=1 / self.weight[:, 0].numel())
            nn.init.ones_(self.residual.alpha)

    @property
    def factor(self) -> int:
        """The side of the patches that become channels before the convolution."""
        return self.stride if self.unshuffles else 1

    @property
    def inner_channels(self) -> int:
        """The input channels of the kernel: those of the image after the pixel unshuffle."""
        return self.in_channels * self.factor**2

    @property
    def circular(self) -> bool:
        """Whether the image wraps around."""
        return self.padding_mode == "circular"

    @abstractmethod
    def convolve(self, x: Tensor) -> Tensor:
        """Return the output for images of `inner_channels`, those after the pixel unshuffle."""

    @abstractmethod
    def proved_convolve(self, size: tuple[int, int]) -> ProvedMap:
        """Return the proof of `convolve` in float64 for images of this size; called without gradients."""

    def forward(self, x: Tensor) -> Tensor:
        if self.parts is not None:
            y: Tensor = self.parts(x)
            return y
        x = unshuffle(x, self.factor)
        if self.circular:  # an image with zeros at its ends would not wrap around where it ends
            require_multiples((x.shape[-2], x.shape[-1]), self.dilation)
        return self.convolve(x) if self.dilation == 1 else dilated(self.convolve, x, self.dilation)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        if self.parts is not None:
            return self.parts.proved(shape)
        (_, h, w), factor, d = shape, self.factor, self.dilation
        require_multiples((h, w), factor * (d if self.circular else 1))
        h, w = h // factor, w // factor
        with torch.no_grad():
            inner = self.proved_convolve((-(-h // d), -(-w // d)))
        apply = inner.apply
        if d > 1:  # every interleaved image errs by its share of the gain, and by the offset
            whole, size = apply, (inner.output_shape[0], h, w)
            apply = lambda x: dilated(whole, x, d)  # noqa: E731
            inner = replace(inner, apply=apply, output_shape=size, offset=up(inner.offset * d))
        return inner if factor == 1 else replace(inner, apply=lambda x: apply(unshuffle(x, factor)))

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        """Return a proved upper bound on the Lipschitz constant for images of this size, before the stride.

        Without a size it is that given at construction.
        """
        size = self.input_size if input_size is None else self._checked_size(input_size)
        if size is None:
            name = type(self).__name__
            raise BronetError(f"input_size must be given to bound a {name}, whose norm depends on it, got None")
        return self.proved((self.in_channels, *size)).lipschitz

    def extra_repr(self) -> str:
        mode = f"padding_mode={self.padding_mode!r}" if self.circular else f"padding={self.padding}"
        channels = f"{self.in_channels}, {self.out_channels}"
        apart = f", dilation={self.dilation}" if self.dilation > 1 else ""
        return f"{channels}, kernel_size={self.kernel_size}, stride={self.stride}, {mode}{apart}"

    def _checked_padding(self, padding: int | None) -> int:
        """Return the zeros on each side."""
        name, kept, least = type(self).__name__, self.kernel_size // 2, self.least_padding
        if padding is None:
            return 0 if self.circular else kept
        if self.circular:
            without = "padding must be left out with padding_mode='circular'"
            raise BronetError(f"{without}, which adds none, got {padding!r}")
        if type(padding) is int and (padding == kept or (least is not None and padding >= least)):
            return padding
        if least is None:
            raise BronetError(f"padding of {name} must be kernel_size // 2 = {kept} or left out, got {padding!r}")
        instead = "; padding_mode='circular' adds none" if least > 0 and "circular" in self.padding_modes else ""
        raise BronetError(f"padding of {name} must be a whole number of at least {least}, got {padding!r}{instead}")

    def _checked_size(self, size: tuple[int, int]) -> tuple[int, int]:
        sizes = checked_shape(size, "input_size")
        if len(sizes) != IMAGE_AXES - 1:
            raise BronetError(f"input_size must be a height and a width, such as (32, 32), got {size!r}")
        h, w = sizes
        require_multiples((h, w), self.factor)
        return h, w


AnyConvolution = Convolution[Any, Any]
