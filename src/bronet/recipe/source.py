"""Where a recipe comes from: a name, or a file that holds one as YAML."""

from pathlib import Path

from bronet.errors import BronetError
from bronet.recipe.catalog import named_recipe
from bronet.recipe.schema import Recipe
from bronet.recipe.text import from_text

SUFFIXES = frozenset({".yaml", ".yml"})
"""Suffixes of recipe files; anything else is the name of a recipe."""


def find_recipe(text: str) -> Recipe:
    """Return the recipe that a text names: one of the package by its name, or a YAML file."""
    path = Path(text)
    return read_recipe(path, advice="give a YAML file or a name") if path.suffix in SUFFIXES else named_recipe(text)


def read_recipe(path: Path, *, advice: str) -> Recipe:
    """Return the recipe of a YAML file; the error for an unreadable one ends with the advice."""
    try:
        return from_text(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BronetError(f"could not read the recipe {path} ({error}); {advice}") from None
    except BronetError as error:
        raise BronetError(f"in {path}: {error}") from None
