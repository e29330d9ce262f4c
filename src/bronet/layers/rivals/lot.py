"""LOT (Xu et al. 2022): (V V*)^-1/2 V at every frequency, by Newton's iteration.

Orthogonal only where the iteration has converged, which it does not for ill-conditioned parameters (Figure 13). The
bound is proved for the matrices that came out; a certificate carries a remark where they are not orthogonal.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bronet.errors import BronetError
from bronet.layers.base import require_counts
from bronet.layers.convolution import PaddingMode
from bronet.layers.rivals.fourier import FourierConv2d, GridKey
from bronet.ortho.lot import LOT_STEPS, lot_orthogonal
from bronet.ortho.real_dft import is_dense

# A layer whose worst singular value is further from one than this is called not converged.
CONVERGED = 1e-3


@dataclass(frozen=True)
class Convergence:
    """How far Newton's iteration came: extreme singular values over all frequencies (measured, not proved)."""

    steps: int
    smallest: float
    largest: float

    @property
    def residual(self) -> float:
        """The distance of the worst singular value from one."""
        return max(abs(self.smallest - 1), abs(self.largest - 1))

    @property
    def converged(self) -> bool:
        return self.residual <= CONVERGED


class LOTConv2d(FourierConv2d):
    """x -> (V V*)^-1/2 V x; a contraction after a few steps, an orthogonal map in the limit.

    Not guaranteed: that the limit is reached. On a nearly singular V more than about 50 steps diverge, which a proof
    refuses.

    Args: as in `FourierConv2d`; `steps` of Newton's iteration, 10 in the published layer.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        *,
        steps: int = LOT_STEPS,
        stride: int = 1,
        padding: int | None = None,
        padding_mode: PaddingMode = "zeros",
        residual_depth: int | None = None,
        input_size: tuple[int, int] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        require_counts(steps=steps)
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=padding,
            padding_mode=padding_mode,
            residual_depth=residual_depth,
            input_size=input_size,
            device=device,
            dtype=dtype,
        )
        self.steps = steps

    def orthogonalize(self, V: Tensor) -> Tensor:
        return lot_orthogonal(V, steps=self.steps)

    @torch.no_grad()
    def convergence(self, input_size: tuple[int, int]) -> Convergence:
        """Return how far the iteration came for images of this size (before the stride), in float64."""
        grid = self.windows((input_size[0] // self.stride, input_size[1] // self.stride)).source.grid
        return self._convergence(self.derive(GridKey(grid, is_dense(grid, self.weight.device), torch.float64)))

    def _convergence(self, W: Tensor) -> Convergence:
        m, n = W.shape[-2] // 2, W.shape[-1] // 2
        matrices = torch.complex(W[:, :m, :n], W[:, m:, :n])  # the first block column says it all, at half the size
        gram = matrices @ matrices.mH if m <= n else matrices.mH @ matrices
        squares = torch.linalg.eigvalsh(gram)
        return Convergence(self.steps, float(squares.min().clamp_min(0).sqrt()), float(squares.max().sqrt()))

    def remark(self, W: Tensor) -> str:
        if not bool(torch.isfinite(W).all()):
            # Rounding makes a vanishing eigenvalue of V V* negative, and steps beyond about 50 blow it up.
            raise BronetError(
                f"LOT's Newton iteration must stay finite, but diverged within {self.steps} steps on a nearly singular "
                "parameter; use fewer steps"
            )
        state = self._convergence(W)
        if state.converged:
            return ""
        return (
            f"Newton's iteration has not converged after {state.steps} steps: "
            f"singular values from {state.smallest:.3g} to {state.largest:.9g}"
        )
