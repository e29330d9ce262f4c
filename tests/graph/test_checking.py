"""`check` bounds what it can, says what it cannot, and its bounds are never below the truth."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from bronet import BROConv2d, BronetError, check, convert, create_model, prove
from bronet.cli import app
from bronet.recipe import named_recipe
from bronet.run.folder import create_run
from bronet.run.weights import save_weights
from bronet.wording import bound_text
from jacobian import singular_values

SHAPE = (2, 6, 6)
LINEAR = [
    nn.Conv2d(2, 3, 3, padding=1),
    nn.Conv2d(2, 4, 3, stride=2, groups=2),
    nn.Conv2d(2, 3, 3, dilation=2, padding="same"),
    nn.AvgPool2d(3, 1),
    nn.AvgPool2d(2),
    nn.AdaptiveAvgPool2d((3, 2)),
    nn.AdaptiveAvgPool2d((4, 9)),
    nn.AvgPool2d(3, 2, padding=1, ceil_mode=True, count_include_pad=False),
    nn.Upsample(scale_factor=2, mode="bilinear"),
    nn.ReplicationPad2d((1, 0, 2, 1)),
    nn.ZeroPad2d(1),
    nn.PixelShuffle(1),
    nn.BatchNorm2d(2),
    nn.Sequential(nn.Flatten(), nn.Linear(72, 5)),
    nn.PixelUnshuffle(2),
]


@pytest.mark.parametrize("module", LINEAR, ids=lambda module: type(module).__name__)
def test_the_bound_of_a_linear_module_is_its_norm(module: nn.Module) -> None:
    torch.manual_seed(0)
    module = module.double().eval()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, -2, 2)
            assert part.running_var is not None
            part.running_var.uniform_(0.1, 2)
    found = check(module, SHAPE)
    norm = float(singular_values(module, SHAPE).max())
    assert found.lipschitz is not None
    assert norm <= found.lipschitz <= norm * (1 + 1e-6)


SMOOTH = [nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.Mish, nn.SELU, nn.ELU, nn.CELU]


@pytest.mark.parametrize("kind", [*SMOOTH, nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Hardswish, nn.LeakyReLU, nn.PReLU])
def test_no_activation_is_steeper_than_its_bound(kind: type[nn.Module]) -> None:
    module = kind().double()
    x = torch.linspace(-8, 8, 200_001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(module(x).sum(), x)
    bound = check(module, (1,)).lipschitz
    assert bound is not None
    assert bound - 0.01 * bound <= float(slope.abs().max()) <= bound


def test_overlapping_maxima_are_bounded_by_their_overlaps() -> None:
    x = torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    peak = x.clone()
    peak[0, 0, 2, 2] = 1.0
    module = nn.MaxPool2d(3, 1)
    bound = check(module, (1, 5, 5)).lipschitz
    assert bound is not None
    assert float((module(peak) - module(x)).norm()) == 3.0 <= bound <= 3.001


def test_a_plain_chain_has_a_bound_and_a_layer_that_spoils_it() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    with torch.no_grad():
        model[0].weight.mul_(100)  # type: ignore[union-attr, operator]
    found = check(model, SHAPE)
    assert (found.verdict, found.certifiable) == ("certifiable", True)
    assert found.spoiler is not None
    assert found.spoiler.path == "0"
    product = 1.0
    for layer in found.layers:
        assert layer.bound is not None
        product *= layer.bound
    assert found.lipschitz == pytest.approx(product)
    assert [layer.output_shape for layer in found.layers] == [(4, 6, 6), (4, 6, 6), (144,), (3,)]
    assert model.training


def test_a_layer_without_a_bound_is_named() -> None:
    found = check(nn.Sequential(nn.Flatten(), nn.LayerNorm(72), nn.Linear(72, 3)), SHAPE)
    assert (found.verdict, found.lipschitz) == ("not bounded", None)
    assert found.spoiler is not None
    assert found.spoiler.path == "1"
    assert "1 (LayerNorm)" in found.explanation
    assert "LayerNorm" in str(found)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(72, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.flatten(x + self.conv(x), 1))


def test_a_residual_adds_the_constants_of_its_branches() -> None:
    found = check(Residual(), SHAPE)
    assert found.certifiable
    assert [layer.path for layer in found.layers] == ["conv", "forward: add", "forward: flatten", "last"]
    conv, *_, last = (layer.bound or 0.0 for layer in found.layers)
    assert found.lipschitz == pytest.approx((1 + conv) * last)


class Recurrent(nn.Module):
    """Rows of the image as a sequence, behind a Lipschitz layer: what comes back from torch's LSTM is a pair."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rows, self.last = BROConv2d(2, 4), nn.LSTM(144, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        rows, _ = self.rows(self.first(x).flatten(1)[:, None])
        return self.last(rows[:, -1])


def test_layers_of_any_kind_are_listed_once_each() -> None:
    found = check(Recurrent(), SHAPE)
    modules = [layer for layer in found.layers if layer.kind != "function"]
    assert [(layer.path, layer.kind, layer.bound is None) for layer in modules] == [
        ("first", "BROConv2d", False),
        ("rows", "LSTM", True),
        ("last", "Linear", False),
    ]
    assert found.spoiler == modules[1]
    assert f"{__file__}:" in found.spoiler.place
    assert check(nn.Linear(3, 2), (3,)).layers[0].path == "Linear"


def test_a_certifiable_model_shows_its_proof() -> None:
    model = convert(nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)), SHAPE)
    found, network = check(model), prove(model)
    assert found.certifiable
    assert [layer.bound for layer in found.layers[:-1]] == [layer.lipschitz for _, layer in network.layers]
    assert found.layers[-1].bound == network.head.lipschitz


def test_a_run_is_checked_by_name(tmp_path: Path) -> None:
    recipe = named_recipe("digits/quickstart")
    run = create_run(tmp_path / "run", recipe)
    save_weights(run.weights, create_model("bronet-digits", dataset="digits").state_dict(), recipe=recipe)
    done = CliRunner().invoke(app, ["check", str(run.path)])
    assert done.exit_code == 0, done.output
    assert "certifiable: " in done.output
    assert "stem.linear" in done.output


def test_a_missing_or_wrong_shape_is_one_line() -> None:
    with pytest.raises(BronetError, match="input_shape must be given for a Sequential"):
        check(nn.Sequential(nn.Flatten()))
    with pytest.raises(BronetError, match=r"0 must take activations of shape \(3, 6, 6\), but it says"):
        check(nn.Sequential(nn.Conv2d(2, 3, 3)), (3, 6, 6))
    for shape in ((), (2, -6, 6)):
        with pytest.raises(BronetError, match="input_shape must be sizes of at least 1"):
            check(nn.Sequential(nn.Flatten()), shape)
    with pytest.raises(BronetError, match="0 must take activations of shape"):  # not torch's words about the bound
        check(nn.Sequential(nn.Conv2d(2, 3, 7)), SHAPE)


def _hooked(module: nn.Module) -> nn.Module:
    module.register_forward_hook(lambda _module, _inputs, output: 10 * output)
    return module


def _replaced(module: nn.Module) -> nn.Module:
    own = module.forward
    module.forward = lambda x: 10 * own(x)  # type: ignore[method-assign]
    return module


class Dropping(nn.Module):
    """Drops in evaluation too, which is what the function does by default."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.9)


class Twice(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(x)
        return y, y


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(_hooked(nn.ReLU())),
        _hooked(nn.Sequential(nn.ReLU())),
        nn.Sequential(_replaced(nn.ReLU())),
        _replaced(nn.Sequential(nn.ReLU())),
        Dropping(),
        nn.Sequential(nn.Softplus(threshold=0.0)),
        nn.Sequential(nn.CELU(alpha=-1.0)),
    ],
    ids=["hook", "hook of all", "replaced", "replaced all", "dropout", "jump", "exponential"],
)
def test_what_a_type_does_not_tell_is_not_bounded_by_it(model: nn.Module) -> None:
    assert check(model, SHAPE).lipschitz is None


def test_a_pair_of_outputs_has_no_bound() -> None:
    assert "one tensor" in check(Twice(), SHAPE).explanation


def test_weights_that_a_forward_makes_are_bounded_as_it_makes_them() -> None:
    linear = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4))
    model = nn.Sequential(linear).eval()
    with torch.no_grad():
        linear.parametrizations.weight[0]._u.copy_(torch.ones(4) / 2)  # its estimate of the norm is far too small
        found = check(model, (6,)).lipschitz
    assert found is not None
    assert float(torch.linalg.matrix_norm(linear.double().weight.detach(), 2)) <= found


def test_weights_that_a_hook_makes_are_refused() -> None:
    assert check(nn.Sequential(torch.nn.utils.spectral_norm(nn.Linear(6, 4))), (6,)).lipschitz is None


@pytest.mark.parametrize("module", [nn.PReLU(init=float("nan")), nn.LeakyReLU(float("inf")), nn.ELU(float("nan"))])
def test_a_slope_that_is_no_number_is_refused(module: nn.Module) -> None:
    with pytest.raises(BronetError, match="a slope must be finite to be bounded"):
        check(nn.Sequential(module), SHAPE)


def test_no_bound_of_the_table_is_printed_smaller_than_it_is() -> None:
    linear = nn.Linear(1, 1, bias=False)
    nn.init.constant_(linear.weight, 1.00002)
    assert "1.00002" in str(check(linear, (1,)))


def test_a_notebook_shows_a_table_with_the_line_of_every_operation() -> None:
    class Spoiled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(x * 3)  # x < y

    found = check(Spoiled(), (4,))
    table = found._repr_html_()
    assert table.count("<tr") == len(found.layers) + 2
    assert table.count("font-weight:bold") == 2
    assert "# x &lt; y" in table
    assert f"<td>{bound_text(found.layers[0].bound or 0)}" in table


class NothingLeft(nn.Module):
    """Takes no number of an image, and adds none."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :0] + torch.zeros(0)


def test_activations_without_numbers_can_be_shifted() -> None:
    assert check(NothingLeft(), (4,)).lipschitz == pytest.approx(1.0)
