"""The stored real Fourier basis D of a padded convolution, with what its defect and its rounding cost a proof.

D'D is the identity only up to rounding, so every operator D'_target W D_source is bounded by |W| |D|^2 with a
proved |D|; the bases of a window are columns of the whole grid's basis, whose norm bounds theirs.
"""

import math
from dataclasses import dataclass

import torch

from bronet.ortho.real_dft import RealDFT, Window, is_dense, real_dft
from bronet.ortho.real_form import Windows
from bronet.proof.proved_map import Product
from bronet.proof.rounding import up
from bronet.proof.spectral import absolute_norm, largest_singular_value


@dataclass(frozen=True)
class FourierFrame:
    """The float64 bases from an image's pixels to frequencies (`source`) and back (`target`), with proved norms."""

    source: RealDFT
    target: RealDFT
    dense: bool
    factor_norms: tuple[float, ...]

    @classmethod
    def of(cls, windows: Windows, device: torch.device, *, dense: bool | None = None) -> "FourierFrame":
        """Return the bases of these windows, by default in the form that layers use on this device."""
        grid = windows.source.grid
        dense = is_dense(grid, device) if dense is None else dense
        whole = real_dft(Window(grid, grid), dense=dense, dtype=torch.float64, device=device)
        # Both windows are cut from one stored D, so that a layer is a compression of one operator, exactly.
        source, target = whole.cropped(windows.source), whole.cropped(windows.target)
        return cls(source, target, dense, tuple(largest_singular_value(factor) for factor in whole.factors()))

    @property
    def norm(self) -> float:
        """An upper bound on |D|."""
        return up(math.prod(self.factor_norms))

    def analysis(self) -> list[Product]:
        """Return the products of D x: each factor sums over its columns."""
        pairs = zip(self.source.factors(), self.factor_norms, strict=True)
        return [Product(norm, absolute_norm(factor), factor.shape[1]) for factor, norm in pairs]

    def synthesis(self) -> list[Product]:
        """Return the products of D'u: each factor sums over its rows, the last factor first."""
        pairs = reversed(list(zip(self.target.factors(), self.factor_norms, strict=True)))
        return [Product(norm, absolute_norm(factor), factor.shape[0]) for factor, norm in pairs]
