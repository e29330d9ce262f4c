"""The named recipes: every row of the paper that can be trained, its ablations as sweeps, and runs of our own.

A name is "data set/model". Where the text and the published code disagree, a recipe follows the code and the module
that defines it says so; every choice can be overridden. The paper's numbers are in `paper_table`.
"""

from bronet.errors import BronetError
from bronet.recipe.bronet_recipes import bronet_recipes, bronet_sweeps
from bronet.recipe.lipconvnet_recipes import lipconvnet_recipes, lipconvnet_sweeps
from bronet.recipe.own_recipes import fast_recipes, small_recipes
from bronet.recipe.schema import Recipe
from bronet.recipe.sweep import MARK, Sweep
from bronet.records import nearest

_RECIPES: dict[str, Recipe] = {
    recipe.name: recipe for recipe in (*small_recipes(), *bronet_recipes(), *lipconvnet_recipes(), *fast_recipes())
}
_SWEEPS: dict[str, Sweep] = {sweep.name: sweep for sweep in (*bronet_sweeps(), *lipconvnet_sweeps())}


def recipe_names() -> tuple[str, ...]:
    """Return the names of all recipes, those of sweeps not: small ones first, short ones last."""
    return tuple(_RECIPES)


def sweep_names() -> tuple[str, ...]:
    """Return the names of all sweeps."""
    return tuple(_SWEEPS)


def named_sweep(name: str) -> Sweep:
    """Return the sweep of that name; an unknown name is refused with the nearest known one."""
    if name not in _SWEEPS:
        raise BronetError(f"unknown sweep {name!r}; did you mean {nearest(name, _SWEEPS)!r}?")
    return _SWEEPS[name]


def named_recipe(name: str) -> Recipe:
    """Return the recipe, or the member of a sweep, of that name; an unknown name is refused with the nearest one."""
    if name in _RECIPES:
        return _RECIPES[name]
    if name in _SWEEPS:
        first = next(_SWEEPS[name].members()).name
        raise BronetError(f"{name} is a sweep: train its members one by one, such as {first!r}")
    sweep = name.partition(MARK)[0]
    known = {recipe.name: recipe for recipe in _SWEEPS[sweep].members()} if sweep in _SWEEPS else _RECIPES
    if name not in known:
        raise BronetError(f"unknown recipe {name!r}; did you mean {nearest(name, known)!r}?")
    return known[name]
