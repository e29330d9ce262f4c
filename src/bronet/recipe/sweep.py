"""A sweep: one recipe, and the settings to try (the ablations of Tables 12 and 14 and of App. D.6).

Every member is a recipe of its own, named after what it changes, such as "cifar100/la-beta@loss.beta=3".
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bronet.recipe.schema import Recipe
from bronet.recipe.text import override

MARK = "@"


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """All combinations of the values of some settings; the base recipe carries the sweep's name."""

    base: Recipe
    axes: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def name(self) -> str:
        """The name in front of the mark."""
        return self.base.name

    def members(self) -> Iterator[Recipe]:
        """Yield one recipe per combination, the last axis fastest."""
        keys = [key for key, _ in self.axes]
        for values in itertools.product(*(choices for _, choices in self.axes)):
            settings = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
            yield replace(override(self.base, settings), name=f"{self.name}{MARK}{','.join(settings)}")
