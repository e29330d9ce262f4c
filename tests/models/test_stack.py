"""Rival layers in networks: one word of a recipe, the tables' parameter counts, and the Lipschitz inequality."""

from dataclasses import replace

import pytest
import torch

from bronet import BronetError, build_model, prove
from bronet.layers import CONVOLUTIONS
from bronet.recipe import named_recipe
from bronet.recipe.architecture import Architecture, BRONetArchitecture, LipConvNetArchitecture, StackArchitecture
from bronet.recipe.schema import DatasetSpec, dataset_spec
from bronet.recipe.text import from_text, to_text
from bronet.training.step import TrainingForward

TINY = DatasetSpec("tiny", 1, 8, 8, 3, 255)
SMALL = DatasetSpec("small", 1, 32, 32, 3, 255)


def assert_lipschitz(architecture: Architecture, spec: DatasetSpec) -> None:
    model = build_model(architecture, spec, seed=1).eval()
    network = prove(model)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(8, *spec.shape, dtype=torch.float64, generator=generator)
    y = x + 0.1 * torch.randn(8, *spec.shape, dtype=torch.float64, generator=generator)
    difference = network.logits(x) - network.logits(y)
    gaps = (difference[:, :, None] - difference[:, None]).abs()
    distance = (x - y).flatten(1).norm(dim=1)[:, None, None]
    assert (gaps <= network.lipschitz * network.gaps * distance * (1 + 1e-9)).all()
    with torch.no_grad():
        torch.testing.assert_close(network.logits(x).float(), model(x.float()), atol=3e-3, rtol=0)


@pytest.mark.parametrize("kind", list(CONVOLUTIONS))
def test_one_word_makes_a_bronet_of_any_layer(kind: str) -> None:
    a = BRONetArchitecture(
        width=4, depth=2, dense_depth=1, dense_width=8, stem_kernel=3, stem_stride=1, stem_padding=1, rank="1/2"
    )
    assert_lipschitz(replace(a, backbone=kind), TINY)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["soc", "lot", "eco", "sll"])
def test_one_word_makes_a_lipconvnet_of_another_layer(kind: str) -> None:
    assert_lipschitz(LipConvNetArchitecture(depth=5, width=2, backbone=kind), SMALL)  # type: ignore[arg-type]


STACKS = [
    StackArchitecture(layer="cayley", widths=(4, 4), kernels=(3, 1), strides=(1, 2), dense_widths=(8, 4)),
    StackArchitecture(layer="aol", patch=4, widths=(8, 4), kernels=(3, 1), strides=(1, 1), dense_widths=(8, 4)),
    StackArchitecture(
        layer="sll",
        widths=(4, 4),
        kernels=(3, 3),
        strides=(1, 1),
        pool=4,
        dense_widths=(16, 16),
        hidden=3,
        dense_hidden=5,
        activation="none",
    ),
]


@pytest.mark.parametrize("architecture", STACKS, ids=lambda a: a.layer)
def test_stack_is_lipschitz_with_its_proved_constant(architecture: StackArchitecture) -> None:
    assert_lipschitz(architecture, TINY)


def test_estimates_run_in_parallel_to_the_forward_pass_only_where_it_does_not_read_them() -> None:
    recipe, spec = named_recipe("digits/quickstart"), dataset_spec("digits")
    assert isinstance(recipe.model, BRONetArchitecture)
    for kind, beside in (("bro", True), ("lipreg", True), ("cpl", False)):
        model = build_model(replace(recipe.model, backbone=kind), spec)
        assert TrainingForward(model, recipe).estimates_in_parallel is beside


def test_stack_survives_a_recipe_file() -> None:
    recipe = replace(named_recipe("digits/quickstart"), model=STACKS[2])
    assert from_text(to_text(recipe)) == recipe


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernels": (3,)}, "widths, kernels and strides must be equally long, got 2, 1 and 2 entries"),
        ({"widths": (4, 3)}, "each of widths and dense_widths must be even"),
        ({"strides": (0, 2)}, "each of model.strides must be at least 1, got 0"),
    ],
)
def test_bad_stacks_are_refused_in_one_line(changes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(BronetError, match=message):
        replace(STACKS[0], **changes)  # type: ignore[arg-type]


def test_stack_refuses_images_it_cannot_divide() -> None:
    with pytest.raises(BronetError, match=r"sides a multiple of 4 .* got 8 x 6"):
        build_model(STACKS[1], DatasetSpec("odd", 1, 8, 6, 3, 255))
