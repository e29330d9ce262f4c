"""All kinds of convolutions keep one contract: the same arguments, the same errors, one meaning of a bound."""

import subprocess
import sys

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

from bronet import prove
from bronet.errors import BronetError
from bronet.layers import CONVOLUTIONS, AnyConvolution, BROConv2d, Flatten, LastLayerNormalized
from bronet.models import Chain

KINDS = list(CONVOLUTIONS)
ANY_PADDING = ["bro", "lot", "cayley", "cholesky", "sandwich", "lipreg"]
ODD = ["soc", "bcop", "aol", "cpl", "sll", "standard"]
ONE_MODE = {"eco": "zeros", "lipreg": "circular"}
SIZE = (6, 4)

NAMES = {
    "bro": {"weight"},
    "soc": {"weight"},
    "lot": {"weight"},
    "cayley": {"weight"},
    "cholesky": {"weight"},
    "bcop": {"core", "halves"},
    "eco": {"weight"},
    "aol": {"weight"},
    "cpl": {"weight", "bias", "power_vector"},
    "sll": {"weight", "bias", "log_q"},
    "sandwich": {"weight", "bias", "log_psi"},
    "lipreg": {"weight", "power_vector"},
    "standard": {"weight"},
}
"""Names in saved networks, which must never change."""

BAD = [
    ("in_channels", 0),
    ("in_channels", 4.0),
    ("out_channels", "4"),
    ("out_channels", None),
    ("kernel_size", (3, 3)),
    ("kernel_size", True),
    ("kernel_size", -3),
    ("kernel_size", "3"),
    ("stride", 0),
    ("stride", 1.0),
    ("stride", (2, 2)),
    ("padding", "same"),
    ("padding", -1),
    ("padding", True),
    ("padding", (1, 1)),
    ("padding", 1.0),
    ("padding_mode", "reflect"),
    ("padding_mode", 1),
    ("input_size", 6),
    ("input_size", (6,)),
    ("input_size", (6, 4, 1)),
    ("input_size", (0, 4)),
    ("input_size", (6.0, 4)),
    ("input_size", "64"),
]


@pytest.fixture
def as_a_user_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave wrong types to the layers: the checker of the tests' annotations would refuse them first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def made(kind: str, **changed: object) -> AnyConvolution:
    arguments = {"in_channels": 4, "out_channels": 4, "input_size": SIZE} | changed
    return CONVOLUTIONS[kind](**arguments)  # type: ignore[arg-type]


@pytest.mark.usefixtures("as_a_user_calls_it")
@pytest.mark.parametrize(("name", "value"), BAD)
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_argument_is_refused_at_construction_in_one_line(kind: str, name: str, value: object) -> None:
    with pytest.raises(BronetError) as caught:
        made(kind, **{name: value})
    message = str(caught.value)
    assert "\n" not in message
    assert name in message
    assert repr(value) in message


@pytest.mark.usefixtures("as_a_user_calls_it")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("option", ["rank", "residual_depth", "hidden_channels"])
@pytest.mark.parametrize("value", [0, 1.5, "2", True, (1, 1)])
def test_options_are_checked_or_refused(kind: str, option: str, value: object) -> None:
    with pytest.raises(BronetError, match=option) as caught:
        CONVOLUTIONS[kind](4, 4, input_size=SIZE, **{option: value})  # type: ignore[arg-type]
    assert str(value) in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_that_a_kind_names_is_one_of_its_arguments(kind: str) -> None:
    values = {"rank": 2, "residual_depth": 3, "hidden_channels": 5, "keep_padding": True, "ridge": 1e-3}
    for option in CONVOLUTIONS[kind].options:
        made(kind, **{option: values[option]})


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_known_names(kind: str) -> None:
    assert set(made(kind).state_dict()) == NAMES[kind]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("mode", ["zeros", "circular"])
@pytest.mark.parametrize("kernel_size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_an_image_keeps_its_size_up_to_the_stride_or_is_refused(
    kind: str, kernel_size: int, mode: str, stride: int
) -> None:
    refused = kind in ODD and kernel_size % 2 == 0
    if refused or ONE_MODE.get(kind) == mode:
        with pytest.raises(BronetError, match=r"kernel|padding_mode"):
            made(kind, kernel_size=kernel_size, padding_mode=mode, stride=stride)
        return
    layer = made(kind, kernel_size=kernel_size, padding_mode=mode, stride=stride, out_channels=6)
    assert layer(torch.rand(2, 4, *SIZE)).shape == (2, 6, SIZE[0] // stride, SIZE[1] // stride)


@pytest.mark.parametrize("kind", KINDS)
def test_other_amounts_of_padding_work_or_are_refused(kind: str) -> None:
    mode = "circular" if kind == "eco" else "zeros"
    if kind in ANY_PADDING:
        assert made(kind, padding=2, padding_mode=mode).padding == 2
    else:
        with pytest.raises(BronetError, match=r"padding .* got 2"):
            made(kind, padding=2, padding_mode=mode)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "lipreg"])
@pytest.mark.parametrize("padding", [0, 1])
def test_circular_convolutions_have_no_padding(kind: str, padding: int) -> None:
    with pytest.raises(BronetError, match=f"padding must be left out .* got {padding}"):
        made(kind, padding=padding, padding_mode="circular")


@pytest.mark.parametrize("kind", ["bro", "lot", "sandwich"])
def test_no_zeros_at_all_is_another_mode_and_not_an_amount(kind: str) -> None:
    with pytest.raises(BronetError, match=r"padding .* at least 1, got 0; padding_mode='circular'"):
        made(kind, padding=0)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if ONE_MODE.get(kind) != "circular"])
def test_a_circular_convolution_commutes_with_shifts(kind: str) -> None:
    layer = made(kind, padding_mode="circular", dtype=torch.float64).eval()
    shift = (3, 1)  # of an image of 6 x 4, whose lattices of ECO are two and two pixels apart
    x = torch.rand(1, 4, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(layer(x.roll(shift, (2, 3))), layer(x).roll(shift, (2, 3)))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_bound_is_for_images_before_the_stride(kind: str, stride: int) -> None:
    layer = made(kind, stride=stride, dtype=torch.float64)
    assert layer.lipschitz_bound(SIZE) == layer.proved((4, *SIZE)).lipschitz


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "lipreg"])
def test_without_a_size_a_bound_is_that_of_the_size_at_construction_or_an_error(kind: str) -> None:
    layer = made(kind)
    assert layer.lipschitz_bound() == layer.lipschitz_bound(SIZE)
    with pytest.raises(BronetError, match="input_size must be given"):
        made(kind, input_size=None).lipschitz_bound()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(4, 6, 4), (2, 3, 6, 4), (2, 4, 6), (2, 4, 0, 4)])
def test_images_of_another_shape_are_refused(kind: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(BronetError, match=r"expects|needs"):
        made(kind)(torch.rand(shape))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "lipreg"])
def test_images_are_multiples_of_the_stride(kind: str) -> None:
    layer = made(kind, stride=2)
    for call in (
        lambda: layer(torch.rand(2, 4, 5, 4)),
        lambda: layer.proved((4, 5, 4)),
        lambda: layer.lipschitz_bound((5, 4)),
    ):
        with pytest.raises(BronetError, match="multiples of 2, got 5 x 4"):
            call()


def test_a_subclass_with_a_convolution_of_its_own_has_no_proof_of_the_class_above() -> None:
    class Doubled(BROConv2d):
        def convolve(self, x: Tensor) -> Tensor:
            return 2 * super().convolve(x)

    model = Chain((4, *SIZE), {"conv": Doubled(4, 4), "flatten": Flatten()}, LastLayerNormalized(96, 3))
    with pytest.raises(BronetError, match="Doubled must define"):
        prove(model.eval())


def test_the_layers_know_no_recipe() -> None:
    code = "import sys, bronet.layers; print([m for m in sys.modules if m.startswith('bronet.recipe') or m == 'yaml'])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_layer_says_its_arguments() -> None:
    text = repr(nn.Sequential(*(made(kind) for kind in KINDS if kind not in ONE_MODE)))
    assert text.count("4, 4, kernel_size=3, stride=1, padding=1") == len(KINDS) - len(ONE_MODE)
    assert "padding_mode='circular'" in repr(made("eco"))
