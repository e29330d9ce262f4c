"""Complex matrices as real ones, and Cholesky factors in blocks: what a CPU solves with instead of an inverse.

Activations are rows, the real parts of a batch above the imaginary ones, so that with the matrices stacked likewise
every product is a real one, of a size that libraries do best: LAPACK itself runs at a tenth of their speed. A factor
of n rows takes a third of the operations of an inverse, and solving for fewer than n rows no more than a product.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bronet.ortho.products import memoized, product
from bronet.ortho.spd import TILE, add_ridge, lacking_shift

# Rows from which a Gram matrix is worth a loop of its own.
_LARGE = 256
_PROBES = 4


@dataclass(frozen=True)
class Stacked:
    """Complex m x n matrices V as [Re V; Im V], or real ones as they are."""

    parts: Float[Tensor, "f parts_m n"]
    is_complex: bool

    def doubled(self, rows: Float[Tensor, "f parts_b m"]) -> Tensor:
        """Return rows whose product with `parts` is rows conj(V), and whose transpose gives the gradient of V."""
        if not self.is_complex:
            return rows
        (f, both, m), b = rows.shape, rows.shape[1] // 2
        y = rows.new_empty(f, both, 2 * m)
        y[..., :m] = rows
        y[:, :b, m:] = rows[:, b:]
        torch.neg(rows[:, :b], out=y[:, b:, m:])
        return y

    def conjugate_after(self, rows: Float[Tensor, "f parts_b k"]) -> Float[Tensor, "f parts_b n"]:
        """Return rows conj(V[:k]), which is V* u for the columns u that the rows are."""
        k, m = rows.shape[2], self.parts.shape[1] // (1 + self.is_complex)
        rows = self.doubled(rows)
        if k == m:
            return product(rows, self.parts)
        y = product(rows[..., :k], self.parts[:, :k])
        return y.add_(product(rows[..., k:], self.parts[:, m : m + k])) if self.is_complex else y

    def transpose_after(self, rows: Float[Tensor, "f parts_b n"]) -> Float[Tensor, "f parts_b m"]:
        """Return rows V', which is V p for the columns p that the rows are."""
        y = product(rows, self.parts.mT)
        if not self.is_complex:
            return y
        b, m = y.shape[1] // 2, y.shape[2] // 2
        y[:, :b, :m] -= y[:, b:, m:]
        y[:, b:, :m] += y[:, :b, m:]
        return y[..., :m]

    def gram(self) -> "Stacked":
        """Return V*V; of large matrices one by one, without most of the upper half of its real part."""
        n, m, h = self.parts.shape[2], self.parts.shape[1] // (1 + self.is_complex), self.parts.shape[2] // 2
        S = self.parts.new_empty(len(self.parts), n * (1 + self.is_complex), n)
        if n < _LARGE:
            S[:, :n] = product(self.parts.mT, self.parts)
            if self.is_complex:
                across = product(self.parts[:, :m].mT, self.parts[:, m:])
                torch.sub(across, across.mT, out=S[:, n:])
            return Stacked(S, self.is_complex)
        for K, out in zip(self.parts, S, strict=True):
            rows = K.mT.contiguous()
            lower = product(rows[h:], rows.mT)
            out[:h, :h], out[:h, h:], out[h:n] = product(rows[:h], rows[:h].mT), lower[:, :h].mT, lower
            if self.is_complex:
                across = product(K[:m].mT, K[m:])
                torch.sub(across, across.mT, out=out[n:])
        return Stacked(S, self.is_complex)

    def outer(self) -> "Stacked":
        """Return V V*."""
        if not self.is_complex:
            return Stacked(product(self.parts, self.parts.mT), False)
        re, im = self.parts.chunk(2, dim=1)
        wide, across = torch.cat((re, im), dim=2), product(im, re.mT)
        return Stacked(torch.cat((product(wide, wide.mT), across - across.mT), dim=1), True)

    def block(self, rows: slice, columns: slice) -> "Stacked":
        """Return a copy of a block of square matrices."""
        parts = self.parts.unflatten(1, (-1, self.parts.shape[2]))[:, :, rows, columns]
        return Stacked(parts.flatten(1, 2).clone(memory_format=torch.contiguous_format), self.is_complex)

    def conjugate_(self) -> "Stacked":
        """Conjugate in place, and return it."""
        if self.is_complex:
            self.parts[:, self.parts.shape[1] // 2 :].neg_()
        return self


@dataclass(frozen=True)
class _Tile:
    """L through its inverse."""

    inverse: Stacked

    def forwards(self, rows: Tensor) -> Tensor:
        return self.inverse.transpose_after(rows)

    def backwards(self, rows: Tensor) -> Tensor:
        return self.inverse.conjugate_after(rows)


@dataclass(frozen=True)
class _Blocks:
    """L = [[first, 0], [below, second]]."""

    first: "_Tile | _Blocks"
    below: Stacked
    second: "_Tile | _Blocks"

    def forwards(self, rows: Tensor) -> Tensor:
        m = self.below.parts.shape[2]
        y = self.first.forwards(rows[..., :m])
        return torch.cat((y, self.second.forwards(rows[..., m:] - self.below.transpose_after(y))), dim=-1)

    def backwards(self, rows: Tensor) -> Tensor:
        m = self.below.parts.shape[2]
        x = self.second.backwards(rows[..., m:])
        return torch.cat((self.first.backwards(rows[..., :m] - self.below.conjugate_after(x)), x), dim=-1)


@dataclass(frozen=True)
class BlockFactor:
    """L with L L* = S + d I, d as in `spd.factored`."""

    root: _Tile | _Blocks

    @classmethod
    def of_gram(cls, V: Stacked, ridge: float) -> "BlockFactor":
        """Return the factor of V*V + e I."""
        S = V.gram()
        diagonal = S.parts[:, : S.parts.shape[2]]
        add_ridge(diagonal, ridge)
        factor = cls(_factored(S))
        shift = lacking_shift(_norm_of(S), factor._norm_of_inverse(S))
        if bool((shift != 0).any()):
            diagonal.diagonal(dim1=1, dim2=2).add_(shift[:, None])
            factor = cls(_factored(S))
        return factor

    def solve(self, rows: Float[Tensor, "f parts_b n"]) -> Float[Tensor, "f parts_b n"]:
        """Return S^-1 z for the columns z that the rows are."""
        return self.root.backwards(self.root.forwards(rows))

    def _norm_of_inverse(self, S: Stacked) -> Float[Tensor, " f"]:
        """Return |S^-2 v| / |S^-1 v| for random v: no more than the norm of S^-1, near it where that is large."""
        (f, _, n), kinds = S.parts.shape, 1 + S.is_complex
        v = self.solve(_probes(kinds * _PROBES, n, S.parts.dtype).expand(f, -1, -1))
        v = v / v.abs().amax((1, 2), keepdim=True)
        return (_lengths(self.solve(v), kinds) / _lengths(v, kinds)).amax(1)


def _norm_of(S: Stacked) -> Float[Tensor, " f"]:
    """Return |S v| / |v| for the column v with the largest diagonal entry: no more than the norm, equal at rank one."""
    n, kinds = S.parts.shape[2], 1 + S.is_complex
    longest = S.parts[:, :n].diagonal(dim1=1, dim2=2).argmax(1)
    v = torch.take_along_dim(S.parts, longest[:, None, None], dim=2).view(-1, kinds, n)
    size = _lengths(v, kinds)[:, 0].clamp_min(torch.finfo(v.dtype).tiny)
    return _lengths(S.conjugate_after(v), kinds)[:, 0] / size


def _lengths(rows: Float[Tensor, "f parts_b n"], kinds: int) -> Float[Tensor, "f b"]:
    """Return the length of every vector whose parts are rows."""
    return torch.linalg.vector_norm(rows.unflatten(1, (kinds, -1)), dim=(1, 3))


@memoized(64)
def _probes(count: int, n: int, dtype: torch.dtype) -> Float[Tensor, "1 count n"]:
    return torch.randn(1, count, n, dtype=dtype, generator=torch.Generator().manual_seed(0))


def _factored(S: Stacked) -> _Tile | _Blocks:
    n = S.parts.shape[2]
    if n <= TILE:
        matrices = torch.complex(*S.parts.chunk(2, dim=1)) if S.is_complex else S.parts
        L, info = torch.linalg.cholesky_ex(matrices)
        if bool(info.any()):
            L = torch.where((info > 0)[:, None, None], torch.nan, L)
        M = torch.linalg.solve_triangular(L, torch.eye(n, dtype=L.dtype).expand(L.shape), upper=False)
        parts = torch.cat((M.real, M.imag), dim=1) if S.is_complex else M.contiguous()
        return _Tile(Stacked(parts, S.is_complex))
    m = TILE * -(-n // (2 * TILE))
    head, tail = slice(None, m), slice(m, None)
    first = _factored(S.block(head, head))
    rows = first.forwards(S.block(tail, head).conjugate_().parts)
    below = Stacked(rows.contiguous(), S.is_complex).conjugate_()
    rest = S.block(tail, tail)
    rest.parts.sub_(below.outer().parts)
    return _Blocks(first, below, _factored(rest))
