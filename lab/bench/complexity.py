"""Table 8: multiply-accumulate operations and memory of convolutions, summed over a LipConvNet, to set beside timings.

The paper's formulas for a layer that keeps c channels on s x s images, batch b, kernel k, t inner iterations, rank
ratio kappa; a strided layer counts with its unshuffled image and max(c_in, c_out) channels. They are orders of growth:
only their ratios between two shapes mean something, constants and libraries do not enter.
"""

from dataclasses import dataclass
from fractions import Fraction

SOC_TERMS = 6
LOT_STEPS = 10
STAGES = 5


@dataclass(frozen=True)
class LayerShape:
    """One convolution: batch, image side, channels, kernel."""

    batch: int
    side: int
    channels: int
    kernel: int


@dataclass(frozen=True)
class Cost:
    """MACs and numbers held, of the input's and of the parameters' transformation."""

    input_macs: float
    input_memory: float
    parameter_macs: float
    parameter_memory: float

    @property
    def macs(self) -> float:
        return self.input_macs + self.parameter_macs

    @property
    def memory(self) -> float:
        return self.input_memory + self.parameter_memory

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.input_macs + other.input_macs,
            self.input_memory + other.input_memory,
            self.parameter_macs + other.parameter_macs,
            self.parameter_memory + other.parameter_memory,
        )


def layer_cost(kind: str, shape: LayerShape, *, kappa: float) -> Cost | None:
    """Return the row of Table 8, or None for a kind that the table does not have."""
    b, s2, c, k2 = shape.batch, shape.side**2, shape.channels, shape.kernel**2
    C, M, P = b * s2 * c**2 * k2, b * s2 * c, c**2 * k2
    match kind:
        case "standard":
            return Cost(C, M, 0, P)
        case "soc":
            return Cost(C * SOC_TERMS, M * SOC_TERMS, P * SOC_TERMS, P)
        case "lot":
            return Cost(b * s2 * c**2, 3 * M, 4 * s2 * c**3 * LOT_STEPS, 4 * s2 * c**2 * LOT_STEPS)
        case "cayley":
            return Cost(b * s2 * c**2, 2.5 * M, s2 * c**3, 1.5 * s2 * c**2)
        case "bro":
            return Cost(b * s2 * c**2, 2.5 * M, s2 * c**3 * kappa, 2 * s2 * c**2)
        case _:
            return None


def lipconvnet_layers(*, depth: int, width: int, batch: int, side: int, kernel: int, channels: int) -> list[LayerShape]:
    """Return the convolutions of a LipConvNet whose strided layers come last in their stages."""
    shapes, kept = [], depth // STAGES - 1
    for stage in range(STAGES):
        for i in range(kept):
            source = channels if i == 0 else width
            shapes.append(LayerShape(batch, side, max(source, width), kernel))
        source = width if kept else channels
        side //= 2
        strided = 1 if stage == STAGES - 1 else kernel
        shapes.append(LayerShape(batch, side, max(4 * source, 2 * width), strided))
        channels = width = 2 * width
    return shapes


def lipconvnet_cost(kind: str, shapes: list[LayerShape], *, rank: str = "1/8") -> Cost | None:
    """Return the sum over the network's convolutions; `rank` is kappa of the BRO layers."""
    costs = [layer_cost(kind, shape, kappa=float(Fraction(rank))) for shape in shapes]
    total = Cost(0, 0, 0, 0)
    for cost in costs:
        if cost is None:
            return None
        total = total + cost
    return total
