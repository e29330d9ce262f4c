"""A mirrored network is the mean over an image and its mirror image, as Lipschitz as the network, and proved so."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bronet.attack.pgd import l2_pgd
from bronet.certify import prove
from bronet.certify.run import certify_run, load_model
from bronet.certify.verify import verify_run
from bronet.data import load_images
from bronet.export.frozen_program import frozen_program
from bronet.layers import Flatten, LastLayerNormalized, Normalization
from bronet.models import CertifiableModel, Chain, build_model
from bronet.recipe import named_recipe, override, to_text
from bronet.train.run_folder import open_run
from tiny_run import train_tiny_run

RECIPE = override(named_recipe("digits/quickstart"), ["model.mirrored=true", "model.width=16", "model.depth=2"])


@pytest.fixture(scope="module")
def model() -> CertifiableModel:
    torch.manual_seed(0)
    return build_model(RECIPE.model, RECIPE.data.spec()).eval()


def plain(model: CertifiableModel) -> CertifiableModel:
    """Return the network with the same weights that looks at the image alone."""
    assert model.mirrored
    twin = build_model(replace(RECIPE.model, mirrored=False), RECIPE.data.spec()).eval()
    twin.load_state_dict(model.state_dict())
    return twin


def images(model: CertifiableModel, count: int = 12) -> Tensor:
    return torch.rand(count, *model.image_shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_logits_are_the_mean_over_an_image_and_its_mirror_image(model: CertifiableModel) -> None:
    x, alone = images(model), prove(plain(model))
    mean = (alone.logits(x) + alone.logits(x.flip(-1))) / 2
    torch.testing.assert_close(prove(model).logits(x), mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(model(x.float()).double(), mean, rtol=0, atol=1e-4)
    assert not torch.allclose(mean, alone.logits(x), atol=1e-3)  # the image alone gives something else


def test_training_looks_at_the_image_alone(model: CertifiableModel) -> None:
    x, twin = images(model).float(), plain(model)
    model.train()
    try:
        torch.testing.assert_close(model(x), twin.train()(x))
    finally:
        model.eval()


def test_an_image_and_its_mirror_image_have_one_certificate(model: CertifiableModel) -> None:
    x, network = images(model), prove(model)
    ours, mirrored = network.certify(x), network.certify(x.flip(-1))
    assert torch.equal(ours.prediction, mirrored.prediction)
    torch.testing.assert_close(ours.radius, mirrored.radius, rtol=1e-9, atol=0)


def test_no_difference_of_logits_moves_faster_than_its_constant(model: CertifiableModel) -> None:
    network, x = prove(model), images(model, 40)
    y = x + 0.05 * torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    moved = network.logits(y) - network.logits(x)
    differences = (moved[:, :, None] - moved[:, None, :]).abs()
    distance = (y - x).flatten(1).norm(dim=1)[:, None, None]
    assert (differences <= network.gap_lipschitz * distance + 1e-12).all()


def test_the_rounding_budget_is_the_mean_of_both_and_that_of_taking_it(model: CertifiableModel) -> None:
    x, alone = images(model), prove(plain(model))
    ours, one, other = prove(model).certify(x), alone.certify(x), alone.certify(x.flip(-1))
    same = (ours.prediction == one.prediction) & (ours.prediction == other.prediction)
    assert same.any()  # the budget is one for each pair of classes
    mean = (one.rounding + other.rounding)[same] / 2
    assert (ours.rounding[same] > 0.999 * mean).all()
    assert (ours.rounding[same] < 1.1 * mean).all()


def test_a_mean_that_rounds_a_margin_away_has_no_radius() -> None:
    """Logits of 2^53 and its neighbour: their mean cannot be told from a tie, so the budget must cover the margin."""
    spec = RECIPE.data.spec()
    head = LastLayerNormalized(2, 2, dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(torch.eye(2))
        head.bias.zero_()
    shape = (spec.channels, 1, 2)
    chain = Chain(shape, {"normalization": Normalization((0.0,), dtype=torch.float64), "flatten": Flatten()}, head)
    chain.mirrored = True
    network = prove(chain.eval())
    big = 2.0**53
    certificate = network.certify(torch.tensor([[[[big, big - 1]]]], dtype=torch.float64))
    assert float(certificate.radius) == 0
    assert float(certificate.rounding) >= 1


def test_nothing_is_found_inside_the_radius(model: CertifiableModel) -> None:
    x, network = images(model), prove(model)
    certificate = network.certify(x)
    assert (certificate.radius > 0).all()
    found = l2_pgd(network.logits, x, certificate.prediction, eps=certificate.radius * (1 - 1e-9), steps=20)
    assert not found.success.any()


def test_an_exported_graph_is_mirrored(model: CertifiableModel) -> None:
    x = images(model).float()
    torch.testing.assert_close(frozen_program(model).module()(x), model(x), rtol=1e-5, atol=1e-5)


def test_a_run_is_certified_and_verified_as_what_its_recipe_says(tmp_path: Path) -> None:
    run = open_run(train_tiny_run(tmp_path / "run"))
    recipe = override(run.recipe(), ["model.mirrored=true"])
    run.recipe_file.write_text(to_text(recipe))
    certify_run(run.path, limit=40)
    facts = json.loads((run.path / "certificate.json").read_text())
    assert facts["mirrored"] is True
    assert verify_run(run.path).images == 40
    network, test = prove(load_model(run, recipe)), load_images(recipe.data, "test", limit=40)
    pixels = test.pixels(torch.arange(40), dtype=torch.float64)
    torch.testing.assert_close(network.certify(pixels).radius, network.certify(pixels.flip(-1)).radius)
