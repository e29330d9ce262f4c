"""The words that name a convolution in a recipe: the published kinds, and those of one's own.

A recipe knows the words only; `bronet.layers.register_convolution` says what a new one builds.
"""

import re
from typing import Literal, get_args

from bronet.errors import BronetError

BackboneKind = Literal[
    "bro", "soc", "lot", "cayley", "cholesky", "bcop", "eco", "aol", "cpl", "sll", "sandwich", "lipreg", "standard"
]
WORD = re.compile(r"[a-z][a-z0-9_-]{0,31}", re.ASCII)

_own: list[str] = []


def convolution_kinds() -> tuple[str, ...]:
    """Return every word that a recipe may use: the published kinds first, then the registered ones."""
    return *get_args(BackboneKind), *_own


def add_convolution_kind(name: str) -> None:
    """Make recipes accept a new word; one that is taken or hard to type is refused."""
    if not WORD.fullmatch(name):
        raise BronetError(f"name of a convolution must be a short word such as my-layer, in lower case, got {name!r}")
    if name in convolution_kinds():
        raise BronetError(f"name of a convolution must be new, but {name!r} is registered already; choose another")
    _own.append(name)


def require_convolution_kind(setting: str, value: str) -> None:
    """Raise unless the value of the setting is a known word."""
    if value not in convolution_kinds():
        raise BronetError(
            f"{setting} must be one of {', '.join(convolution_kinds())}, got {value!r}; "
            "a layer of your own is made known by bronet --layers FILE ..."
        )
