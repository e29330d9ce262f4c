"""The standard model of floating-point arithmetic: fl(a op b) = (a op b)(1 + d), |d| <= u, and what follows from it.

Everything here is an upper bound for float64. An inner product of length n, in any order of summation and with or
without fused multiply-add, errs by at most gamma_n |a|.|b| (Higham, Accuracy and Stability, section 3.1). Underflow,
which the model leaves out, is covered by `UNDERFLOW`, added to every absolute error; overflow by a limit on norms
(`bronet.proof.budget`).
"""

import math

from bronet.errors import BronetError

UNIT_ROUNDOFF = 2.0**-53

# Scalars of a bound come from fewer than 2^12 float64 operations on positive numbers, each with relative error at most
# u; this factor outweighs them all.
_SCALAR_SLACK = 1 + 2.0**-40

# An operation that underflows loses less than 2^-1022, even where subnormal results are flushed to zero. With fewer
# than 2^60 of them in a layer and growth below 2^60 this is ample.
UNDERFLOW = 2.0**-900

# Squares below 2^-1022 vanish from a norm; the root of up to 2^60 of them stays below this.
NORM_UNDERFLOW = 2.0**-480

# Error of a stored cosine or sine of 2 pi j / N, in units of u: three roundings make the angle, which is below 2 pi, so
# at most 6 pi from there, and a few ulps from the library's function. A test measures it.
TRIGONOMETRIC_ULPS = 32


def up(value: float) -> float:
    """Return a number that is certainly no less than the positive scalar expression that was rounded to `value`."""
    if not math.isfinite(value):
        raise BronetError(f"a bound must be finite, got {value}; the weights hold NaN, infinity or huge numbers")
    return value * _SCALAR_SLACK + UNDERFLOW


def gamma(n: int) -> float:
    """Return gamma_n = n u / (1 - n u), rounded up."""
    nu = n * UNIT_ROUNDOFF
    return up(nu / (1 - nu))
