"""What a run is: frozen, validated, written as text. No tensors and no torch here."""

from bronet.recipe.architecture import Architecture, BRONetArchitecture, LipConvNetArchitecture
from bronet.recipe.catalog import named_recipe, named_sweep, recipe_names, sweep_names
from bronet.recipe.dataset import DATASETS, DatasetSpec, dataset_spec
from bronet.recipe.paper_table import PaperRow, paper_rows, paper_tables
from bronet.recipe.schema import (
    CertifyRecipe,
    DataRecipe,
    LossRecipe,
    OptimRecipe,
    Recipe,
    TrainRecipe,
    parse_budget,
)
from bronet.recipe.shrink import shrink
from bronet.recipe.source import find_recipe, read_recipe
from bronet.recipe.sweep import Sweep
from bronet.recipe.text import differing_keys, from_text, override, to_text

__all__ = [
    "DATASETS",
    "Architecture",
    "BRONetArchitecture",
    "CertifyRecipe",
    "DataRecipe",
    "DatasetSpec",
    "LipConvNetArchitecture",
    "LossRecipe",
    "OptimRecipe",
    "PaperRow",
    "Recipe",
    "Sweep",
    "TrainRecipe",
    "dataset_spec",
    "differing_keys",
    "find_recipe",
    "from_text",
    "named_recipe",
    "named_sweep",
    "override",
    "paper_rows",
    "paper_tables",
    "parse_budget",
    "read_recipe",
    "recipe_names",
    "shrink",
    "sweep_names",
    "to_text",
]
