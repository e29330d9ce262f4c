"""Layers that move or compare numbers: pixel unshuffle (a stride as channels), flattening, pooling. All 1-Lipschitz."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.layers.base import Fixed, batch_first, batch_last, require_counts
from bronet.ortho import bro_convolution
from bronet.ortho.products import is_traced
from bronet.proof.proved_map import arithmetic, gamma

# From (h, f, w, f, c, b) to (h, w, c, f, f, b), and back.
_MOVED = (0, 2, 4, 1, 3, 5)
_MOVED_BACK = (0, 3, 1, 4, 2, 5)
_HALF_BYTES = 2
_TOGETHER = torch.int64.itemsize // _HALF_BYTES


def require_multiples(size: tuple[int, int], factor: int) -> None:
    """Raise unless an image of this size can be cut into factor x factor windows."""
    h, w = size
    if h % factor or w % factor:
        raise BronetError(f"image height and width must be multiples of {factor}, got {h} x {w}")


def cut_windows(x: Tensor, size: int) -> Tensor:
    """Return a view of (b, c, h, w) as (h/size, size, w/size, size, c, b); both sides multiples of size."""
    h, w = x.shape[-2:]
    require_multiples((h, w), size)
    return batch_last(x).unflatten(1, (w // size, size)).unflatten(0, (h // size, size))


def _copied(x: Tensor) -> Tensor:
    """Return a contiguous copy, moving four numbers of half precision at a time where they lie side by side."""
    side_by_side = x.stride(-1) == 1 and not any(n % _TOGETHER for n in (x.shape[-1], x.storage_offset()))
    if side_by_side and not any(stride % _TOGETHER for stride in x.stride()[:-1]):
        return x.view(torch.int64).contiguous().view(x.dtype)
    return x.contiguous()


class _MovedWindows(torch.autograd.Function):
    """(h, f, w, f, c, b) -> (h, w, c, f, f, b) in half precision, whose single numbers torch moves slowly on a GPU."""

    @staticmethod
    def forward(_ctx, windows: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        return _copied(windows.permute(_MOVED))

    @staticmethod
    def backward(_ctx, *grads: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        return _copied(grads[0].permute(_MOVED_BACK))


def unshuffle(x: Tensor, factor: int) -> Tensor:
    """Turn factor x factor patches into channels: (b, c, h, w) -> (b, c f^2, h/f, w/f)."""
    if factor == 1:
        return x
    eager = not (torch.compiler.is_compiling() or is_traced())
    if x.device.type == "cpu" and eager and (pixels := x.permute(0, 2, 3, 1)).is_contiguous():
        return _unshuffled(pixels, factor).permute(0, 3, 1, 2)
    windows = cut_windows(batch_first(bro_convolution.contiguous_batch_last(x)), factor)
    halves = windows.is_cuda and windows.element_size() == _HALF_BYTES and not is_traced()
    moved: Tensor = _MovedWindows.apply(windows) if halves else windows.permute(_MOVED)
    return batch_first(moved.flatten(2, 4))


def _unshuffled(pixels: Tensor, factor: int) -> Tensor:
    """Return (b, h, w, c) as (b, h/f, w/f, c f^2), a CPU's order: two copies, each of neighbours in memory."""
    require_multiples((pixels.shape[1], pixels.shape[2]), factor)
    windows = pixels.unflatten(2, (-1, factor)).unflatten(1, (-1, factor)).transpose(2, 3).flatten(3, 4)
    return windows.mT.flatten(3, 4)


def flatten_pixels(x: Tensor) -> Tensor:
    """Return (b, c, h, w) as (b, h w c), pixel by pixel."""
    return batch_first(batch_last(x).flatten(0, -2))


class PixelUnshuffle(Fixed):
    """Turn factor x factor patches into channels: (b, c, h, w) -> (b, c f^2, h/f, w/f)."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        require_counts(factor=factor)
        self.factor = factor

    def function(self) -> Callable[[Tensor], Tensor]:
        return partial(unshuffle, factor=self.factor)


class Flatten(Fixed):
    """(b, c, h, w) -> (b, h w c), pixel by pixel: a view of activations in the memory order (h, w, c, b).

    With `by_channel` it is (b, c h w), as torch flattens.
    """

    def __init__(self, *, by_channel: bool = False) -> None:
        super().__init__()
        self.by_channel = by_channel

    def function(self) -> Callable[[Tensor], Tensor]:
        return partial(torch.flatten, start_dim=1) if self.by_channel else flatten_pixels


def _pool(x: Tensor, *, windows_to_numbers: Callable[[Tensor], Tensor], patch: int) -> Tensor:
    return batch_first(windows_to_numbers(cut_windows(x, patch)))


class _Pool(Fixed):
    """One number for each channel of every patch x patch window; no windows overlap."""

    def __init__(self, patch: int) -> None:
        super().__init__()
        require_counts(patch=patch)
        self.patch = patch

    @staticmethod
    @abstractmethod
    def pooled(windows: Tensor) -> Tensor:
        """Return the numbers of windows (h, patch, w, patch, c, b), whose patches are square."""

    def function(self) -> Callable[[Tensor], Tensor]:
        return partial(_pool, windows_to_numbers=self.pooled, patch=self.patch)


class L2NormPool(_Pool):
    """The l2 norm of each channel over patch x patch windows; 1-Lipschitz by the triangle inequality (App. B.2).

    Its gradient at an all-zero window is zero.
    """

    @staticmethod
    def pooled(windows: Tensor) -> Tensor:
        return torch.linalg.vector_norm(windows, dim=(1, 3))

    def rounding(self) -> tuple[float, float]:
        # Squares, their sum and the root: relative error gamma_{p^2 + 2}. Squares below 2^-1022 vanish, roots of them
        # do not.
        return gamma(self.patch**2 + 2), arithmetic().norm_underflow


class MaxPool(_Pool):
    """The largest number of each patch x patch window, per channel: 1-Lipschitz, and exact."""

    @staticmethod
    def pooled(windows: Tensor) -> Tensor:
        return torch.amax(windows, dim=(1, 3))


class ScaledMeanPool(_Pool):
    """The sum over patch x patch windows divided by `patch`: the product with a unit vector for every window.

    It is the mean scaled to norm one, the pooling of the published CPL and SLL networks.
    """

    @staticmethod
    def pooled(windows: Tensor) -> Tensor:
        return torch.sum(windows, dim=(1, 3)) / windows.shape[1]

    def rounding(self) -> tuple[float, float]:
        # p^2 - 1 additions, and a division that some devices compute as a product with 1 / p: two roundings. The norm
        # of the absolute values is one as well.
        return gamma(self.patch**2 + 1), arithmetic().underflow


class RepeatedPixels(Fixed):
    """Every pixel `factor` x `factor` times, divided by `factor`: a product with unit vectors."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor

    def function(self) -> Callable[[Tensor], Tensor]:
        return partial(repeated_pixels, factor=self.factor)

    def rounding(self) -> tuple[float, float]:
        return gamma(2), arithmetic().underflow


def repeated_pixels(x: Tensor, factor: int) -> Tensor:
    """Return an image with every pixel factor x factor times, divided by `factor`."""
    b, c, h, w = x.shape
    repeated = x[:, :, :, None, :, None].expand(b, c, h, factor, w, factor)
    return repeated.reshape(b, c, h * factor, w * factor) / factor


def dilated(convolve: Callable[[Tensor], Tensor], x: Tensor, dilation: int) -> Tensor:
    """Return what a convolution makes of the image's dilation x dilation interleaved images, interleaved again.

    That is the convolution with so many pixels between its taps. Where the sides are no multiples, zeros are added at
    the ends and cut off again, which is a compression. Of images that would hold no pixel none is made.
    """
    b, c, h, w = x.shape
    down, across = min(dilation, h), min(dilation, w)
    rows, columns = -(-h // down), -(-w // across)
    x = nn.functional.pad(x, (0, columns * across - w, 0, rows * down - h))
    apart = x.reshape(b, c, rows, down, columns, across).permute(0, 3, 5, 1, 2, 4)
    y = convolve(apart.reshape(b * down * across, c, rows, columns))
    y = y.reshape(b, down, across, y.shape[1], rows, columns).permute(0, 3, 4, 1, 5, 2)
    return y.reshape(b, y.shape[1], rows * down, columns * across)[:, :, :h, :w]
