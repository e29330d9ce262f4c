"""The page that states the theorem names tests that exist, and the layers it speaks of are all of them."""

import re
from pathlib import Path

import torch

import bronet.layers
from bronet.layers import LipschitzLayer
from hostile import LAYERS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "soundness.md").read_text(encoding="utf-8")
ABSTRACT = {"Convolution", "LipschitzLayer", "Head"}


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) >= 6
    assert {name for name in named if f"def {name}(" not in sources} == set()


def test_every_public_layer_is_among_the_hostile_ones() -> None:
    public = {
        name
        for name in bronet.layers.__all__
        if isinstance(layer := getattr(bronet.layers, name), type) and issubclass(layer, LipschitzLayer)
    }
    built = {type(factory(dtype=torch.float64)).__name__ for factory, _ in LAYERS.values()}
    assert public - ABSTRACT <= built
