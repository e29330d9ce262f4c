"""Networks by name: fresh or trained, for known data sets or for images of one's own."""

from typing import Any

import pytest
import torch

import bronet
from bronet import BronetError, create_model, list_models, load_pretrained


def test_the_lists_name_what_can_be_created() -> None:
    assert "bronet-m" in list_models()
    assert "bronet-digits/digits" in list_models(pretrained=True)


def test_a_network_for_images_of_ones_own_has_their_shape_and_classes() -> None:
    model = create_model("bronet-digits", in_shape=(3, 16, 16), num_classes=5)
    assert model(torch.rand(2, 3, 16, 16)).shape == (2, 5)


@pytest.mark.parametrize("name", ["bronet-digits", "bronet-digits/digits"])
def test_a_pretrained_network_has_its_weights_and_the_names_of_its_classes(name: str) -> None:
    model = create_model(name, pretrained=True)
    expected = load_pretrained("bronet-digits/digits").state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in model.state_dict().items())
    assert model.classes == tuple("0123456789")


def test_another_number_of_classes_gets_a_fresh_head_on_trained_layers() -> None:
    model, whole = (
        create_model("bronet-digits", pretrained=True, num_classes=3),
        load_pretrained("bronet-digits/digits"),
    )
    expected = whole.state_dict()
    same = {key: torch.equal(value, expected[key]) for key, value in model.state_dict().items() if key in expected}
    assert model(torch.rand(1, 1, 8, 8)).shape == (1, 3)
    assert {key for key, is_same in same.items() if not is_same} <= {"head.weight", "head.bias"}
    assert float(bronet.certified_radius(model, torch.rand(1, 1, 8, 8))) >= 0


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"name": "bronet-n", "dataset": "cifar10"}, "'bronet-n'; the nearest known one is 'bronet-"),
        ({"name": "bronet-m"}, "in_shape"),
        ({"name": "bronet-m", "dataset": "cifar10", "in_shape": (1, 8, 8)}, r"in_shape .* \(3, 32, 32\)"),
        ({"name": "bronet-digits", "pretrained": True, "in_shape": (3, 8, 8)}, r"in_shape .* \(1, 8, 8\)"),
        ({"name": "bronet-n", "pretrained": True}, "bronet-n must be"),
    ],
)
def test_what_cannot_be_created_is_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(BronetError, match=named):
        create_model(**settings)


def test_the_radius_is_where_the_docs_say() -> None:
    assert bronet.radius.margin_radius(torch.tensor([[2.0, 0.0]]), torch.ones(2, 2)).radius > 1.9
