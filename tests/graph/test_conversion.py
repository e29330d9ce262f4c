"""A plain torch model becomes a certifiable one of the same shapes, or is refused in a line that names the place."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bronet import BronetError, certified_radius, check, convert, create_model, prove
from bronet.graph.estimate import layers_of
from bronet.layers import (
    Block,
    BROConv2d,
    BROLinear,
    Centring,
    Flatten,
    LastLayerNormalized,
    MaxMin,
    MaxPool,
    Normalization,
    PixelUnshuffle,
)
from bronet.layers.shape import ScaledMeanPool

SHAPE = (3, 16, 16)


class VGG(nn.Module):
    """Convolutions, then dense layers, with the usual mixture of modules and functions."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
            nn.GELU(),
            nn.Conv2d(16, 16, 1),
            nn.ReLU(),
        )
        self.dropout = nn.Dropout()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.features(x), (2, 2))
        x = F.relu(self.first(x.view(x.size(0), -1)))
        return self.last(self.dropout(x))


def test_every_step_becomes_its_counterpart() -> None:
    model = convert(VGG(), SHAPE)
    kinds = [type(layer).__name__ for _, layer in layers_of(model.layers)]
    block = ["Centring", "MaxMin"]
    assert kinds == [
        *("Normalization", "BROConv2d", *block, "MaxPool", "BROConv2d", "MaxMin"),
        *("PixelUnshuffle", "BROLinear", "Bias", "MaxMin", "ScaledMeanPool", "Flatten", "BROLinear", "Bias", "MaxMin"),
    ]
    assert isinstance(model.head, LastLayerNormalized)
    assert sum(isinstance(part, Block) for part in model.modules()) == 3


def test_the_result_is_lipschitz_and_keeps_its_signal() -> None:
    """|f_t - f_j| moves by no more than its gap times the distance, and random images have a radius."""
    network = prove(convert(VGG(), SHAPE, std=0.5).eval())
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(20, *SHAPE, dtype=torch.float64, generator=generator)
    y = x + 0.1 * torch.randn(20, *SHAPE, dtype=torch.float64, generator=generator)
    difference = network.logits(x) - network.logits(y)
    moved = (difference[:, :, None] - difference[:, None]).abs()
    distance = (x - y).flatten(1).norm(dim=1)[:, None, None]
    assert (moved <= network.gap_lipschitz * distance).all()
    assert network.lipschitz == pytest.approx(2, rel=1e-6)
    assert (network.certify(x).radius > 1e-3).all()


def test_weights_come_from_the_seed_and_the_model_is_left_alone() -> None:
    mine = VGG()
    before = {name: value.clone() for name, value in mine.state_dict().items()}
    first, again, other = (convert(mine, SHAPE, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.head.weight, other.head.weight)  # type: ignore[arg-type]
    assert all(torch.equal(value, before[name]) for name, value in mine.state_dict().items())
    assert mine.training


@pytest.mark.parametrize("kind", ["aol", "lipreg"])
def test_another_kind_of_convolution_is_one_word(kind: str) -> None:
    model = convert(VGG(), SHAPE, layer=kind)
    assert check(model).certifiable
    assert not any(isinstance(part, BROConv2d) for part in model.modules())


def test_lipschitz_layers_in_the_model_stay() -> None:
    mine = nn.Sequential(BROConv2d(3, 8), MaxMin(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(128, 2))
    with torch.no_grad():
        mine[0].weight.add_(1.0)  # type: ignore[union-attr]
    model = convert(mine, SHAPE)
    assert [type(layer) for _, layer in layers_of(model)][:4] == [Normalization, BROConv2d, MaxMin, ScaledMeanPool]
    kept = dict(model.named_parameters())["layers.0_0.weight"]
    assert torch.equal(kept, mine[0].weight)  # type: ignore[arg-type]
    assert kept is not mine[0].weight


def test_patches_are_a_dense_layer_on_what_the_unshuffle_makes() -> None:
    model = convert(nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.Flatten(), nn.Linear(128, 2)), SHAPE)
    assert [type(layer) for _, layer in layers_of(model)][1:3] == [PixelUnshuffle, BROLinear]
    assert certified_radius(model, torch.rand(2, *SHAPE)).shape == (2,)


def ending(*steps: nn.Module) -> nn.Sequential:
    """Return the steps with an end that is not reached."""
    return nn.Sequential(*steps, nn.Flatten(), nn.Linear(1, 2))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(768, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.flatten(x + self.conv(x), 1))


class Deciding(Residual):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.flatten(1)) if x.sum() > 0 else self.last(-x.flatten(1))


class Calling(Residual):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cumsum(x, 1).flatten(1))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(Residual()), "^0: add must take only the output of the step before it: a residual or branching"),
        (Deciding(), "^forward of Deciding must be readable by torch.fx, which says at "),
        (Calling(), "^forward: cumsum must be a function with a known constant"),
        (ending(nn.Conv2d(3, 6, 3, padding=1, groups=3)), "^0: groups of a Conv2d must be 1 to be converted, got 3"),
        (ending(nn.Conv2d(3, 6, 3, dilation=2)), r"^0: dilation of a Conv2d must be \(1, 1\) to be converted"),
        (ending(nn.Conv2d(3, 6, 3)), r"^0: .* must keep its output's shape \(6, 14, 14\), but it gives \(6, 16, 16\)"),
        (ending(nn.Conv2d(3, 6, 3, stride=3)), r"^0: stride 3 of a Conv2d must divide the image"),
        (ending(nn.Conv2d(3, 6, (3, 5), padding=1)), "^0: kernel_size must be the same along both axes"),
        (ending(nn.ReLU()), "^0: an activation must have an even number of channels, .* got 3; make .* 4 wide"),
        (ending(nn.MaxPool2d(3, 2)), "^0: windows of a pool must not overlap"),
        (ending(nn.AdaptiveAvgPool2d(7)), "^0: windows of a pool must be square and whole"),
        (ending(nn.LayerNorm(16)), "^0: LayerNorm has no Lipschitz counterpart"),
        (
            nn.Sequential(MaxMin(), Flatten(), LastLayerNormalized(16, 2)),
            r"got 2 \(LastLayerNormalized\); bronet.Chain takes bronet's own layers",
        ),
        (nn.Sequential(nn.LSTM(16, 2)), r"^the last step must be a torch.nn.Linear .* got 0 \(LSTM\)"),
        (nn.Sequential(nn.Flatten(), nn.Linear(768, 2), nn.Softmax(1)), r"^the last step .* got 2 \(Softmax\)"),
        (
            nn.Sequential(nn.Linear(16, 2)),
            "^0: a Linear must follow a Flatten to be converted, got activations of shape",
        ),
        (nn.Sequential(nn.Flatten(), nn.Linear(5, 2)), r"^1 must take activations of shape \(768,\), but it says"),
        (create_model("bronet-digits", dataset="digits"), "^model must be a plain torch model, got BRONet"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_what_has_no_counterpart_is_refused_in_one_line(model: nn.Module, message: str) -> None:
    with pytest.raises(BronetError, match=message) as caught:
        convert(model, SHAPE)
    assert "\n" not in str(caught.value)


def test_shared_weights_are_refused() -> None:
    conv = nn.Conv2d(3, 3, 3, padding=1)
    with pytest.raises(
        BronetError, match=r"^0 must be used once to be converted, as shared weights are not kept, got 2"
    ):
        convert(nn.Sequential(conv, conv, nn.Flatten(), nn.Linear(768, 2)), SHAPE)


def test_a_mean_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(BronetError, match="mean must have one value for each of 3 channels, got 1"):
        convert(VGG(), SHAPE, mean=(0.5,))


def test_max_pooling_is_torchs_and_exact() -> None:
    x = torch.randn(3, 2, 6, 4, dtype=torch.float64)
    proved = MaxPool(2).proved((2, 6, 4))
    assert torch.equal(proved.apply(x), F.max_pool2d(x, 2))
    assert (proved.lipschitz, proved.gain, proved.offset) == (1.0, 0.0, 0.0)


def test_centring_replaces_the_bias_before_it() -> None:
    model = convert(VGG(), SHAPE)
    assert isinstance(model.get_submodule("layers.0_features_0.shift"), Centring)
