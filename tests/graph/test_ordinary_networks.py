"""Seventeen networks as people bring them: all but two are read, bounded, converted and certified as they are."""

import pytest
import torch
from torch import Tensor

from bronet import BronetError, check, convert, prove
from bronet.graph import ProvedNetwork
from jacobian import largest_stretch
from ordinary_networks import NETWORKS, REFUSED, drawn, images

pytestmark = pytest.mark.usefixtures("one_thread")
READ = [name for name in NETWORKS if name not in REFUSED]
NOT_PROVED_AS_THEY_ARE = ("ConvNeXt",)  # a layer norm divides
PROVED = [name for name in READ if name not in NOT_PROVED_AS_THEY_ARE]


def assert_sound(network: ProvedNetwork, model: torch.nn.Module) -> None:
    assert largest_stretch(network.logits, images(network.image_shape, 20)) <= network.constants[-1]
    x = images(network.image_shape, 4, seed=2)
    expected: Tensor = model.double().eval()(x)
    logits = network.logits(x)
    assert torch.equal(logits.argmax(1), expected.argmax(1))
    torch.testing.assert_close(logits - logits[:, :1], expected - expected[:, :1])  # margins, whatever the ending
    assert (network.certify(x).radius > 0).all()


@pytest.mark.parametrize("name", PROVED)
def test_a_network_is_certified_as_it_is(name: str) -> None:
    model, shape = drawn(name)
    assert_sound(prove(model, shape), model)


@pytest.mark.parametrize("name", READ)
def test_a_network_is_converted_and_certified(name: str) -> None:
    model, shape = drawn(name)
    converted = convert(model, shape).eval()
    network = prove(converted)
    assert float(converted.lipschitz_estimate().detach()) == pytest.approx(network.lipschitz, rel=1e-4)
    assert len(converted.changes) >= 2
    assert_sound(network, converted)
    logits = converted.float()(images(shape, 8).float())
    assert (logits - logits.mean(0)).abs().max() > 1e-3  # what comes in still decides what comes out


@pytest.mark.parametrize(("name", "missing"), [("ViT", "attention"), ("LSTM", "recurren")])
def test_what_cannot_be_bounded_says_what_is_missing(name: str, missing: str) -> None:
    model, shape = drawn(name)
    found = check(model, shape)
    assert (found.lipschitz, found.spoiler is None) == (None, False)
    assert missing in found.explanation
    assert __file__.replace("tests/graph/test_ordinary", "tests/helpers/ordinary") in found.explanation
    with pytest.raises(BronetError, match=missing):
        prove(model, shape)
    with pytest.raises(BronetError) as refusal:
        convert(model, shape)
    assert "\n" not in str(refusal.value)


def test_a_layer_norm_is_why_a_convnext_is_not_bounded_as_it_is() -> None:
    model, shape = drawn("ConvNeXt")
    found = check(model, shape)
    assert found.spoiler is not None
    assert found.spoiler.path == "stem.1: layer_norm"


def test_a_log_softmax_at_the_end_is_left_out_and_named() -> None:
    model, shape = drawn("MNIST example")
    network = prove(model, shape)
    assert "log_softmax" in network.note
    assert network.head.gaps is not None  # those of the last linear layer
    assert torch.equal(network.certify(images(shape, 3)).prediction, model(images(shape, 3).float()).argmax(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROVED)
def test_no_search_over_a_thousand_inputs_finds_more_than_the_bound(name: str) -> None:
    model, shape = drawn(name)
    network = prove(model, shape)
    assert largest_stretch(network.logits, images(shape, 1000)) <= network.constants[-1]
