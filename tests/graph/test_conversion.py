"""A plain torch model becomes a certifiable one of the same shapes, or is refused in a line that names the place."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bronet import BronetError, certified_radius, check, convert, create_model, prove
from bronet.data import load_dataset
from bronet.graph.model import layers_of
from bronet.layers import (
    Block,
    BROConv2d,
    BROLinear,
    Centring,
    Convolution,
    Flatten,
    LastLayerNormalized,
    MaxMin,
    MaxPool,
    Mix,
    Normalization,
    PixelUnshuffle,
)
from bronet.layers.shape import ScaledMeanPool
from bronet.losses import logit_annealing

SHAPE = (3, 16, 16)
STEPS = 120


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


class Basic(nn.Module):
    """ResNet's block as torchvision writes it."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(c_out), nn.BatchNorm2d(c_out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.downsample = (
            nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride), nn.BatchNorm2d(c_out)) if stride > 1 else None
        )

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, channels: int = 3, classes: int = 5, width: int = 8) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layers = nn.Sequential(Basic(width, width, 1), Basic(width, 2 * width, 2))
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.maxpool(F.relu(self.bn1(self.conv1(x)))))
        return F.log_softmax(self.fc(x.mean((2, 3))), dim=1)


class DenseNet(nn.Module):
    """Concatenations, the batch norm before the convolution, and a shuffle of channels by sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(c) for c in (8, 12, 16))
        self.convs = nn.ModuleList(nn.Conv2d(c, 4, 3, padding=1) for c in (8, 12, 16))
        self.register_buffer("std", torch.full((3, 1, 1), 0.5))
        self.stem, self.classifier = nn.Conv2d(3, 8, 4, stride=4), nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x / self.std)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(F.relu(norm(x)))], 1)
        b, c, h, w = x.shape
        x = x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


@pytest.mark.parametrize("kind", [ResNet, DenseNet])
def test_branches_are_kept_and_proved(kind: type[nn.Module]) -> None:
    model = convert(kind(), SHAPE)
    network, x = prove(model), torch.rand(7, *SHAPE, generator=torch.Generator().manual_seed(0))
    assert float(model.lipschitz_estimate().detach()) == pytest.approx(network.lipschitz, rel=1e-5)
    assert (network.certify(x).radius > 0).all()
    twin = copy.deepcopy(model).eval()
    assert torch.equal(twin(x), model.eval()(x))
    assert torch.allclose(network.logits(x).float(), twin(x), atol=1e-5)
    model.train()(x).logsumexp(1).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_sum_becomes_a_mix_that_is_no_more_lipschitz_than_its_branches() -> None:
    model = convert(ResNet(), SHAPE)
    mixes = [path for path, part in model.named_modules() if isinstance(part, Mix)]
    assert mixes == ["layers.5_layers_0_add", "layers.13_layers_1_add"]
    with torch.no_grad():
        model.get_submodule(mixes[0]).weight.fill_(3.0)  # type: ignore[operator, union-attr]
    assert prove(model).lipschitz == pytest.approx(1, rel=1e-5)
    assert sum("becomes Mix" in change and __file__ in change for change in model.changes) == 2
    assert "fc: Linear becomes LastLayerNormalized" in model.changes


@pytest.mark.usefixtures("one_thread")
def test_a_converted_resnet_learns_the_digits_with_certificates() -> None:
    model = convert(ResNet(channels=1, classes=10, width=16), (1, 8, 8))
    train, test = load_dataset("digits", "train"), load_dataset("digits", "test")
    optimizer, generator = torch.optim.NAdam(model.parameters(), lr=2e-3), torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        index = torch.randint(len(train), (64,), generator=generator)
        logits = model(train.pixels(index))
        loss = logit_annealing(logits, train.labels[index], temperature=0.25, offset=2.0, beta=5.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    certificate = prove(model).certify(test.pixels(torch.arange(200)))
    correct = certificate.prediction == test.labels[:200]
    assert correct.double().mean() > 0.8
    assert certificate.radius[correct].median() > 0.1


def ending(*steps: nn.Module) -> nn.Sequential:
    """Return the steps with the end of a classifier."""
    features = nn.Sequential(*steps, nn.Flatten())
    return nn.Sequential(*features, nn.Linear(features(torch.zeros(1, *SHAPE)).shape[1], 2))


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
        (Deciding(), "^forward of Deciding must be readable by torch.fx, which says at "),
        (Calling(), "^forward: cumsum at .*test_conversion.py:.* must have a Lipschitz counterpart"),
        (ending(nn.ReLU()), "^0: an activation must have an even number of channels, .* got 3; make .* 4 wide"),
        (
            nn.Sequential(Flatten(), MaxMin(), LastLayerNormalized(768, 2)),
            r"got 2 \(LastLayerNormalized\); bronet.Chain takes bronet's own layers",
        ),
        (nn.Sequential(nn.Flatten(), nn.LSTM(768, 2)), r"^the last step must be a torch.nn.Linear .* got 1 \(LSTM\)"),
        (nn.Sequential(nn.Flatten(), nn.Linear(768, 2), nn.Softmax(1)), r"^the last step .* got 2 \(Softmax\)"),
        (
            nn.Sequential(nn.Linear(16, 2)),
            "^0: a Linear must follow a Flatten to be converted, got activations of shape",
        ),
        (ending(nn.Softmax(1)), r"^0 \(Softmax\) must have a Lipschitz counterpart"),
        (nn.Sequential(nn.Flatten(), nn.Linear(5, 2)), r"^1 must take activations of shape \(768,\), but it says"),
        (create_model("bronet-digits", dataset="digits"), "^model must be a plain torch model, got BRONet"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_what_has_no_counterpart_is_refused_in_one_line(model: nn.Module, message: str) -> None:
    with pytest.raises(BronetError, match=message) as caught:
        convert(model, SHAPE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(3, 6, 3, padding=1, groups=3),
        nn.Conv2d(3, 6, 3, dilation=2),
        nn.Conv2d(3, 6, 2, dilation=3),
        nn.Conv2d(3, 6, (3, 5), dilation=(2, 1), padding=2),
        nn.Conv2d(3, 6, 3, dilation=2, stride=2),
        nn.Conv2d(3, 6, 3),
        nn.Conv2d(3, 6, 3, stride=3),
        nn.Conv2d(3, 6, (3, 5), padding=1, stride=(1, 2)),
        nn.Conv2d(3, 6, 4, stride=2, padding=1),
        nn.Conv2d(3, 6, 3, padding=1, padding_mode="circular"),
        nn.ConvTranspose2d(3, 6, 3, stride=2, padding=1),
        nn.MaxPool2d(3, 2),
        nn.AvgPool2d((2, 4)),
        nn.AdaptiveAvgPool2d(7),
        nn.Upsample(scale_factor=2),
        nn.LayerNorm(16),
        nn.GroupNorm(1, 3),
        nn.Linear(16, 6),
    ],
    ids=str,
)
def test_a_counterpart_has_the_shape_of_its_step_and_norm_one(module: nn.Module) -> None:
    """Whatever does not fit is cut, or zeros are added around it, which raises no constant."""
    model = convert(ending(module), SHAPE)
    assert prove(model).lipschitz == pytest.approx(1, rel=1e-5)
    x = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0))
    assert model.eval().layers(x).shape == ending(module)[:2](x).flatten(1).shape
    assert model(x).std(0).min() > 1e-4


@pytest.mark.parametrize(("layer", "dilated"), [("bro", (3, 2)), ("aol", (3, 2)), ("eco", (5, 1)), ("lipreg", (5, 1))])
def test_a_dilated_convolution_stays_one_where_the_layer_has_dilation(layer: str, dilated: tuple[int, int]) -> None:
    model = convert(ending(nn.Conv2d(3, 6, 3, padding=2, dilation=2)), SHAPE, layer=layer)
    (conv,) = (part for part in model.modules() if isinstance(part, Convolution))
    assert (conv.kernel_size, conv.dilation) == dilated


def test_shared_weights_are_refused() -> None:
    conv = nn.Conv2d(3, 3, 3, padding=1)
    with pytest.raises(BronetError, match=r"^0 must be used once .*, got 2"):
        convert(nn.Sequential(conv, conv, nn.Flatten(), nn.Linear(768, 2)), SHAPE)


def test_a_mean_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(BronetError, match=r"^mean .* 3 channels, got 1$"):
        convert(VGG(), SHAPE, mean=(0.5,))


def test_max_pooling_is_torchs_and_exact() -> None:
    x = torch.randn(3, 2, 6, 4, dtype=torch.float64)
    proved = MaxPool(2).proved((2, 6, 4))
    assert torch.equal(proved.apply(x), F.max_pool2d(x, 2))
    assert (proved.lipschitz, proved.gain, proved.offset) == (1.0, 0.0, 0.0)


def test_centring_replaces_the_bias_before_it() -> None:
    model = convert(VGG(), SHAPE)
    assert isinstance(model.get_submodule("layers.0_features_0.shift"), Centring)
