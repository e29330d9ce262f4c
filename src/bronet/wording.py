"""Numbers for people: bounds, never printed smaller than they are, and times; the spelling of names and of formats."""

import math
import re
from decimal import ROUND_CEILING, Context, Decimal
from enum import StrEnum

BOUND_DIGITS = 7
EXCESS_DIGITS = 2
NEARLY_ONE = 1e-6
"""A bound this close above 1 is shown as 1 plus its excess."""
LONG = 10**BOUND_DIGITS
"""A bound from here on is shown with an exponent."""
MINUTE = 60
GIB = 2**30
ABSENT = "–"
_SHORT_WORD = re.compile(r"[a-z][a-z0-9_-]{0,31}", re.ASCII)


class Format(StrEnum):
    """The kind of file that a network is exported to."""

    ONNX = "onnx"
    TORCH = "torch-export"

    @property
    def suffix(self) -> str:
        """The end of the file's name."""
        return ".onnx" if self is Format.ONNX else ".pt2"


def is_short_word(text: str) -> bool:
    """Whether a name is easy to type: letters in lower case, digits, hyphens and underscores, 32 at most."""
    return _SHORT_WORD.fullmatch(text) is not None


def bound_text(value: float) -> str:
    """Return an upper bound in a few digits, rounded up; just above 1 as "1 + excess"."""
    if not math.isfinite(value):
        return str(value)
    excess = Decimal(value) - 1
    if 0 < excess < NEARLY_ONE:
        return f"1 + {Context(prec=EXCESS_DIGITS, rounding=ROUND_CEILING).plus(excess):.1e}"
    shown = Context(prec=BOUND_DIGITS, rounding=ROUND_CEILING).plus(Decimal(value)).normalize()
    return f"{shown:f}" if shown < LONG else f"{shown:e}"


def percent(share: float) -> str:
    """Return a share as a percentage with one decimal."""
    return f"{100 * share:.1f} %"


def number_text(value: float) -> str:
    """Return a measured number with four decimals, or a dash where it does not exist."""
    return ABSENT if math.isnan(value) else f"{value:.4f}"


def duration_text(seconds: float | None) -> str:
    """Return a time as one would say it: "7.5 s", "19 min 12 s", "1 h 0 min 5 s"; None is unknown."""
    if seconds is None:
        return "time unknown"
    if round(seconds, 1) < MINUTE:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), MINUTE)
    hours, minutes = divmod(minutes, MINUTE)
    return f"{f'{hours} h ' if hours else ''}{minutes} min {rest} s"
