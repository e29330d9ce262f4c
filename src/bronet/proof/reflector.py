"""Bounds for D'WD and I - 2 D'QQ'D, with the matrices W, the factor Q and the Fourier basis D as they are stored.

D'D is the identity only up to rounding, so every operator D'_target W D_source is bounded by |W| |D|^2 with a
proved |D|; the bases of a window are columns of the whole grid's basis, whose norm bounds theirs (`FourierFrame`).

Q'Q is positive semidefinite, so the operator is symmetric with eigenvalues in [1 - 2 lambda, 1], where lambda bounds
lambda_max(Q'Q) lambda_max(D'D): its norm is at most max(1, 2 lambda - 1). Cutting channels or pixels is a compression,
which cannot raise a norm.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bronet.errors import BronetError
from bronet.ortho.bro_convolution import Windows
from bronet.ortho.products import is_traced
from bronet.ortho.real_dft import DenseDFT, RealDFT, Window, is_dense, real_dft
from bronet.ortho.spd import unit_scaled, with_ridge
from bronet.proof.proved_map import Product, up
from bronet.proof.spectral import absolute_norm, gram_error, largest_eigenvalue, largest_singular_value

# Bytes of a spectrum that a core's second cache holds: so much is transformed, multiplied and transformed back at once.
_SPECTRUM_AT_ONCE = 2**20

Act = Callable[[slice, Float[Tensor, "f two_c b"]], Float[Tensor, "f two_k b"]]
"""What is done to a part of a spectrum: W u, for some of the frequencies in order."""


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

    def filtered(self, x: Float[Tensor, "pixels c b"], act: Act) -> Float[Tensor, "pixels_out k b"]:
        """Return D_target' W D_source x, where `act(part, u)` is W u at a part of the frequencies.

        A CPU takes a large separable spectrum in parts, a few height frequencies each, so that it stays in the cache.
        The products are the same, and so are their sums.
        """
        source, target = self.source, self.target
        at_once = x.device.type != "cpu" or torch.compiler.is_compiling() or is_traced()
        at_once |= torch.is_grad_enabled() and x.requires_grad
        if at_once or isinstance(source, DenseDFT) or isinstance(target, DenseDFT):
            return target.synthesis(act(slice(None), source.analysis(x)))
        (_, c, b), lines, across = x.shape, source.height.shape[0] // 2, source.width.shape[0] // 2
        size = max(1, _SPECTRUM_AT_ONCE // (2 * across * c * b * x.element_size()))
        undone = x.new_empty(0)  # the transform undone along the width
        for first, along_height in zip(range(0, lines, size), source.lines(x).split(size), strict=True):
            u = (source.width @ along_height).view(-1, 2 * c, b)
            v = act(slice(first * across, first * across + len(u)), u)
            columns = v.view(len(along_height), 2 * across, -1)
            width = target.width.mT.expand(len(columns), -1, -1)
            undone = undone if first else x.new_empty(lines, width.shape[1], columns.shape[2])
            torch.bmm(width, columns, out=undone[first : first + len(columns)])
        return (target.height.mT @ undone.view(2 * lines, -1)).view(-1, v.shape[1] // 2, b)

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


def orthonormal_factor(
    A: Float[Tensor, "*batch m n"], S: Float[Tensor, "*batch n n"], *, ridge: float
) -> Float[Tensor, "*batch m n"]:
    """Return Q = A L^-T with L L' = S + e I, where S = A'A: orthonormal columns up to ridge and rounding."""
    L, info = torch.linalg.cholesky_ex(with_ridge(S, ridge))
    if bool(info.any()):
        raise BronetError("a reflector's parameters must be finite; they hold NaN or infinity")
    return torch.linalg.solve_triangular(L, A.mT, upper=False).mT


def dense_factor(V: Float[Tensor, "c n"], *, ridge: float) -> Float[Tensor, "c n"]:
    """Return the orthonormal factor of a dense reflector."""
    V = unit_scaled(V)
    return orthonormal_factor(V, V.mT @ V, ridge=ridge)


def factor_norm(Q: Float[Tensor, "*batch m n"]) -> float:
    """Return a proved upper bound on lambda_max(Q'Q) over the batch."""
    return largest_eigenvalue(Q.mT @ Q, gram_error(Q))


def reflector_norm(squared: float) -> float:
    """Return max(1, 2 lambda - 1) for lambda = `squared`, an upper bound on the squared norm of Q'D."""
    return max(1.0, up(2 * squared - 1))
