"""Descriptions of runs: frozen, validated, and written as text, without tensors or torch."""

from bronet.recipe.architecture import BRONetArchitecture, LipConvNetArchitecture
from bronet.recipe.catalog import find_recipe, named_recipe, recipe_names
from bronet.recipe.schema import DataRecipe, LossRecipe, OptimRecipe, Recipe, TrainRecipe, dataset_spec, parse_budget
from bronet.recipe.text import differing_keys, from_text, override, read_recipe, to_text

__all__ = [
    "BRONetArchitecture",
    "DataRecipe",
    "LipConvNetArchitecture",
    "LossRecipe",
    "OptimRecipe",
    "Recipe",
    "TrainRecipe",
    "dataset_spec",
    "differing_keys",
    "find_recipe",
    "from_text",
    "named_recipe",
    "override",
    "parse_budget",
    "read_recipe",
    "recipe_names",
    "to_text",
]
