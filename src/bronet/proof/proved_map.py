"""What a layer promises to a certificate: a float64 map, its Lipschitz constant, and its own rounding error.

For `apply` as it runs (fl f) and the exact map f that it stands for, with the numbers stored:

    |f(x) - f(y)| <= lipschitz |x - y|      and      |fl f(x) - f(x)| <= gain |x| + offset      for all x, y.

A map of several inputs x_1, ..., x_n promises the same with distances that are joined, by their sum or by the root of
the sum of their squares, and with the sum of the norms:

    |f(x) - f(y)| <= lipschitz join_i |x_i - y_i|      and      |fl f(x) - f(x)| <= gain sum_i |x_i| + offset.

The three numbers are upper bounds. Nothing is promised about how far f is from the layer's float32 forward.

A proved program owns what it computes with: plain numbers and tensors, and no module that somebody could change. That
is guaranteed for what a function holds in its closure, its defaults, its bound object and the parts of those. What it
reaches through names of its own file is not looked at; such names should be functions and constants.
"""

import inspect
import math
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import Enum, auto
from types import GeneratorType

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bronet.errors import BronetError

# The standard model of floating-point arithmetic: fl(a op b) = (a op b)(1 + d), |d| <= u. Everything below is an upper
# bound for float64. An inner product of length n, in any order of summation and with or without fused multiply-add,
# errs by at most gamma_n |a|.|b| (Higham, Accuracy and Stability, section 3.1). Underflow, which the model leaves out,
# is covered by `Arithmetic.underflow`; overflow by a limit on norms (`bronet.proof.budget`).
UNIT_ROUNDOFF = 2.0**-53

# Scalars of a bound come from fewer than 2^12 float64 operations on positive numbers, each with relative error at most
# u; this factor outweighs them all.
_SCALAR_SLACK = 1 + 2.0**-40

# An operation that underflows loses at most 2^-1022, even where subnormal results are flushed to zero; fewer than 2^100
# of them lose less than this. How what is lost grows on its way is counted where it does (`rounding_of_products`).
UNDERFLOW = 2.0**-900

# Squares below 2^-1022 vanish from a norm; the root of up to 2^60 of them stays below this.
NORM_UNDERFLOW = 2.0**-480

# Error of a stored cosine or sine of 2 pi j / N, in units of u: three roundings make the angle, which is below 2 pi, so
# at most 6 pi from there, and a few ulps from the library's function. A test measures it.
TRIGONOMETRIC_ULPS = 32

_PLAIN = (str, bytes, int, float, complex, type, torch.dtype, torch.device, type(None))
# Where functions, their cells, bound methods, wrappers, partial functions and other objects hold what they hold.
_HOLDING = (
    *("__closure__", "cell_contents", "__defaults__", "__kwdefaults__", "__self__", "__func__", "__wrapped__"),
    *("func", "args", "keywords", "__dict__"),
)


def up(value: float) -> float:
    """Return a number that is certainly no less than the positive scalar expression that was rounded to `value`."""
    if not math.isfinite(value):
        raise BronetError(f"a bound must be finite, got {value}; the weights hold NaN, infinity or huge numbers")
    return value * _SCALAR_SLACK + UNDERFLOW


@dataclass(frozen=True)
class Arithmetic:
    """In what a program runs: its unit roundoff, how often a stored number counts as rounded, and the largest norm.

    Norms, constants and rounding gains over u (which bound the absolute sums inside a layer) must stay below `largest`,
    so that no product, sum or square in a layer can overflow at a point of the ball. `underflow` bounds, in norm, what
    operations lose that underflow: those of one product of matrices, or of one function of every number. Where a
    program takes norms, vanishing squares cost it `norm_underflow`.
    """

    unit: float = UNIT_ROUNDOFF
    constants: int = 0
    largest: float = 2.0**400
    underflow: float = UNDERFLOW
    norm_underflow: float = NORM_UNDERFLOW


FLOAT64 = Arithmetic()
# Fewer than 2^80 operations and numbers below 2^-126, met by activations below 2^60 of fewer than 2^40 entries; and
# the root of 2^40 such squares.
FLOAT32 = Arithmetic(unit=2.0**-24, constants=8, largest=2.0**60, underflow=2.0**-42, norm_underflow=2.0**-42)
_arithmetic: ContextVar[Arithmetic] = ContextVar("arithmetic", default=FLOAT64)


def arithmetic() -> Arithmetic:
    """Return the arithmetic of the programs that are proved now."""
    return _arithmetic.get()


@contextmanager
def executed_in(wanted: Arithmetic) -> Iterator[None]:
    """Prove and certify programs that run in this arithmetic; the proofs themselves are computed in float64."""
    token = _arithmetic.set(wanted)
    try:
        yield
    finally:
        _arithmetic.reset(token)


def gamma(n: int) -> float:
    """Return gamma_n = n u / (1 - n u) of the program's arithmetic, rounded up, its rounded constants counted."""
    nu = (n + arithmetic().constants) * arithmetic().unit
    return up(nu / (1 - nu) if nu < 1 else math.inf)


def gamma_of_proof(n: int) -> float:
    """Return gamma_n of float64, in which every bound is computed, rounded up."""
    nu = n * UNIT_ROUNDOFF
    return up(nu / (1 - nu))


class Join(Enum):
    """How the distances between the inputs of a map add up: as a sum, or as the sides of a right angle."""

    SUM = auto()
    ROOT_OF_SQUARES = auto()


@dataclass(frozen=True)
class ProvedMap:
    """A float64 map on a batch, with proved Lipschitz constant and rounding error; a remark is for people to read.

    Of logits f, `gaps[t, j]` is an upper bound on the Lipschitz constant of f_t - f_j with respect to the joined
    inputs, where one is known that is better than sqrt(2) times `lipschitz`. A rounding error that is not known has an
    infinite gain, a map without a bound an infinite constant.
    """

    apply: Callable[..., Tensor]
    output_shape: tuple[int, ...]
    lipschitz: float
    gain: float = 0.0
    offset: float = 0.0
    remark: str = ""
    gaps: Float[Tensor, "k k"] | None = None
    join: Join = Join.SUM

    @property
    def known(self) -> bool:
        """Whether a bound is known."""
        return self.lipschitz < math.inf

    def __post_init__(self) -> None:
        for name, value in (("lipschitz", self.lipschitz), ("gain", self.gain), ("offset", self.offset)):
            if not value >= 0:  # NaN too
                raise BronetError(f"{name} of a proved map must be an upper bound of at least 0, got {value}")


@dataclass(frozen=True)
class Product:
    """A matrix product inside a layer: upper bounds on the norm of A and of |A|, and the length of its sums."""

    norm: float
    absolute_norm: float
    length: int


def rounding_of_products(products: Sequence[Product]) -> tuple[float, float]:
    """Return g and o such that computing A_k ... A_1 x in floating point errs by at most g |x| + o.

    One step computes from an inexact input: e' = norm * e + gamma_length * absolute_norm * (size + e), where size and e
    are multiples of |x|. What underflow loses in a step grows in all later ones, however little reached it.
    """
    size, error, lost = 1.0, 0.0, 0.0
    for product in products:
        rounding = gamma(product.length) * product.absolute_norm
        error = product.norm * error + rounding * (size + error)
        lost = product.norm * lost + rounding * lost + arithmetic().underflow
        size = product.norm * size
    return up(error), up(lost)


def norm_of_products(products: Sequence[Product]) -> float:
    """Return an upper bound on the norm of A_k ... A_1."""
    size = 1.0
    for product in products:
        size = up(size * product.norm)
    return size


def exact(apply: Callable[[Tensor], Tensor], output_shape: tuple[int, ...], remark: str = "") -> ProvedMap:
    """Return the proved map of an operation that only moves or compares numbers: 1-Lipschitz, nothing rounded."""
    return ProvedMap(apply, output_shape, lipschitz=1.0, remark=remark)


def linear_map(
    apply: Callable[[Tensor], Tensor],
    output_shape: tuple[int, ...],
    products: Sequence[Product],
    norm: float | None = None,
    remark: str = "",
) -> ProvedMap:
    """Return the proved map of a chain of products, whose composition has norm at most `norm` if that is known."""
    gain, offset = rounding_of_products(products)
    if norm is None:
        norm = products[0].norm if len(products) == 1 else norm_of_products(products)
    return ProvedMap(apply, output_shape, norm, gain, offset, remark)


def norm_of_constant(constant: Tensor, copies: int = 1) -> float:
    """Return an upper bound on the norm of a float64 constant that is repeated so many times; it is never zero."""
    norm = float(torch.linalg.vector_norm(constant)) * (1 + gamma_of_proof(constant.numel() + 2))
    return up((norm + NORM_UNDERFLOW) * math.sqrt(copies))


def shift(constant: Float[Tensor, "..."], shape: tuple[int, ...], remark: str = "") -> ProvedMap:
    """Return the proved map of adding a float64 constant that broadcasts to activations of this shape."""
    return shifted(exact(lambda x: x, shape, remark=remark), constant)


def shifted(plain: ProvedMap, constant: Float[Tensor, "..."]) -> ProvedMap:
    """Return a proved map with a float64 constant added behind it, which broadcasts to what the map gives."""
    apply, gain, offset = plain.apply, plain.gain, plain.offset
    size = norm_of_constant(constant, math.prod(plain.output_shape) // max(1, constant.numel()))
    return replace(
        plain,
        apply=lambda x: apply(x) + constant,
        gain=up(gain + gamma(1) * (plain.lipschitz + gain)),
        offset=up(offset + gamma(1) * (size + offset) + arithmetic().underflow),
    )


def require_sealed(apply: Callable[..., Tensor], name: str) -> None:
    """Raise if a proved map's function refers to a module: its hooks and settings could change the program later."""
    module = next((value for value in held_by(apply) if isinstance(value, nn.Module)), None)
    if module is not None:
        raise BronetError(
            f"the proved map of {name} must compute with numbers and tensors of its own, but it refers to a "
            f"{type(module).__name__}; copy what it needs before defining `apply`"
        )


def held_by(function: object) -> Iterable[object]:
    """Return everything that a function holds on to, directly or through what it holds."""
    waiting, found = [function], dict[int, object]()
    while waiting:
        value = waiting.pop()
        if id(value) not in found and not isinstance(value, _PLAIN):
            found[id(value)] = value
            waiting += _parts_of(value)
    return found.values()


def _parts_of(value: object) -> Iterable[object]:
    match value:
        case Tensor() | nn.Module():
            return ()
        case dict():
            return value.values()
        case tuple() | list() | set() | frozenset() | deque():
            return value
        case weakref.ref():
            return (value(),)
        case GeneratorType():
            return inspect.getgeneratorlocals(value).values()
    slots = (getattr(kind, "__slots__", ()) for kind in type(value).__mro__)
    names = (name for own in slots for name in ([own] if isinstance(own, str) else own))
    return (getattr(value, name, None) for name in (*_HOLDING, *names))
