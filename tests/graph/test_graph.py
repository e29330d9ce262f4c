"""Models read as graphs: bounds never below the truth, nothing broken inside a radius, refusals with file and line."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from bronet import BROLinear, BronetError, Chain, check, prove
from bronet.attack.search import autoattack, l2_pgd
from bronet.graph import CertifiableModel
from bronet.graph.network import of_parts
from bronet.graph.reading import read
from bronet.layers import BROConv2d, Flatten, LastLayerNormalized, MaxMin, Normalization
from jacobian import largest_stretch, singular_values

pytestmark = pytest.mark.usefixtures("one_thread")
Shape = tuple[int, ...]


class ResidualMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.inner = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.mix = nn.Parameter(torch.tensor([0.3, -0.2, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        for index, layer in enumerate(self.inner):
            w = torch.sigmoid(self.mix[index])
            x = (1 - w) * x + w * F.leaky_relu(layer(x), 0.2)
        return self.last(x)


class Basic(nn.Module):
    """ResNet's block, in place operations and all."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(c_out), nn.BatchNorm2d(c_out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, groups=2)
        self.down = nn.Conv2d(c_in, c_out, 1, stride) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.down is None else self.down(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 4, 3, 1, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.Sequential(Basic(4, 4, 1), Basic(4, 8, 2))
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem((x - 0.5) / 0.25))
        return self.last(torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1))


class Branches(nn.Module):
    """A small U-Net with a shuffle of channels, and branches of our layers."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(8, 2, 3, padding=1, dilation=1)
        self.ours, self.last = BROConv2d(4, 4), nn.Linear(72, 3)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.down(F.pad(x, (1, 1, 1, 1))[:, :, 1:-1, 1:-1]))
        b = F.interpolate(F.avg_pool2d(self.ours(a), 2), scale_factor=2)
        _, c, h, w = b.shape
        b = b.view(b.size(0), 2, c // 2, h, w).transpose(1, 2).reshape(b.size(0), c, h, w)
        y = self.up(torch.cat((a, b - b.mean((2, 3), keepdim=True)), dim=1))
        return self.last(torch.maximum(y, -y).flatten(1))


class Halves(nn.Module):
    """Two halves apart, and together again."""

    def __init__(self, split: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.one, self.other, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(6, 3)
        self.split = split

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.split(x)
        return self.last(torch.cat([self.one(a), F.relu(self.other(b))], dim=1))


MODELS: dict[str, tuple[Callable[[], nn.Module], Shape]] = {
    "residual": (ResidualMLP, (6,)),
    "resnet": (ResNet, (2, 8, 8)),
    "branches": (Branches, (2, 6, 6)),
    "chunk": (lambda: Halves(lambda x: x.chunk(2, dim=1)), (6,)),
}


def drawn(name: str) -> tuple[nn.Module, Shape]:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            assert part.running_var is not None
            nn.init.uniform_(part.weight, -2, 2)
            part.running_var.uniform_(0.1, 2)
    return model, shape


def images(shape: Shape, count: int) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("name", MODELS)
def test_the_bound_is_at_least_the_largest_singular_value(name: str) -> None:
    model, shape = drawn(name)
    network = prove(model, shape)
    twin = model.double().eval()
    for x in images(shape, 20):
        jacobian = torch.func.jacrev(network.logits)(x[None]).reshape(3, -1)
        assert float(torch.linalg.matrix_norm(jacobian, 2)) <= network.constants[-1]
        differences = (jacobian[:, None] - jacobian[None]).norm(dim=-1)
        assert (differences <= network.gap_lipschitz).all()
    x, y = images(shape, 200), images(shape, 400)[200:]
    assert torch.allclose(network.logits(x), twin(x), rtol=1e-9, atol=1e-9)
    moved = (network.logits(x) - network.logits(y)).norm(dim=1)
    assert (moved <= network.constants[-1] * (x - y).flatten(1).norm(dim=1)).all()


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_found_inside_a_radius_of_an_ordinary_model(name: str) -> None:
    model, shape = drawn(name)
    network, x = prove(model, shape), images(shape, 12)
    proved = network.certify(x)
    assert (proved.radius > 0).all()
    if len(shape) == 3:
        found = l2_pgd(network.logits, x, proved.prediction, eps=proved.radius * (1 - 1e-9), steps=20)
        assert not found.success.any()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_no_search_over_a_thousand_images_finds_more_than_the_bound(name: str) -> None:
    model, shape = drawn(name)
    network = prove(model, shape)
    assert largest_stretch(network.logits, images(shape, 1000)) <= network.constants[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "branches"])
def test_autoattack_breaks_no_certificate_of_a_network_with_branches(name: str) -> None:
    pytest.importorskip("pyautoattack")
    model, shape = drawn(name)
    network, x = prove(model, shape), images(shape, 4).float().double()
    proved = network.certify(x)

    def attacked(eps: float) -> Tensor:
        logits = lambda x: network.logits(x.double()).float()  # noqa: E731
        return autoattack(logits, x, proved.prediction, classes=3, norm="l2", eps=eps, seed=0).double()

    found = attacked(float(proved.radius.median()))
    moved = (found - x).flatten(1).norm(dim=1)
    assert ((network.logits(found).argmax(1) == proved.prediction) | (moved >= proved.radius)).all()
    assert (network.logits(attacked(30.0)).argmax(1) != proved.prediction).any(), (
        "an attack that never succeeds is none"
    )


@pytest.mark.parametrize(
    "split",
    [
        lambda x: x.chunk(2, dim=1),
        lambda x: torch.split(x, 3, dim=-1),
        lambda x: (x[:, :3], x[:, 3:]),
        lambda x: (x[:, ::2], x[:, 1::2]),
    ],
    ids=["chunk", "split", "slices", "steps"],
)
def test_parts_that_meet_again_have_the_largest_constant(split: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
    found = check(Halves(split), (6,))
    bounds = {layer.path: layer.bound or math.nan for layer in found.layers}
    assert found.lipschitz == pytest.approx(max(bounds["one"], bounds["other"]) * bounds["last"], rel=1e-6)


def test_parts_that_overlap_are_joined_as_if_they_were_apart() -> None:
    found = check(Halves(lambda x: (x[:, :3], x[:, 2:5])), (6,))
    bounds = {layer.path: layer.bound or math.nan for layer in found.layers}
    assert found.lipschitz == pytest.approx(math.hypot(bounds["one"], bounds["other"]) * bounds["last"])


class Coupled(nn.Module):
    """A reversible block: the matrix of constants between the halves is [[1, a], [b, 1 + a b]]."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.g = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=1)
        a = a + self.f(b)
        b = b + self.g(a)
        return torch.cat((a, b), dim=1)


def test_coupled_halves_have_the_norm_of_their_matrix() -> None:
    torch.manual_seed(0)
    model = Coupled()
    found = check(model, (6,))
    a, b = (float(torch.linalg.matrix_norm(layer.weight.detach(), 2)) for layer in (model.f, model.g))
    expected = float(torch.linalg.matrix_norm(torch.tensor([[1, a], [b, 1 + a * b]]), 2))
    assert found.lipschitz == pytest.approx(expected, rel=1e-5)
    assert float(singular_values(model.double(), (6,)).max()) <= found.lipschitz


def test_a_layer_used_twice_counts_twice_in_the_estimate() -> None:
    class Twice(CertifiableModel):
        def __init__(self) -> None:
            super().__init__((1, 2, 2))
            self.scale, self.flatten = Normalization((0.0,), std=0.5), Flatten()
            self.head = LastLayerNormalized(4, 3)

        def forward(self, images: Tensor) -> Tensor:
            return self.head(self.flatten(self.scale(self.scale(images))))

    model = Twice()
    assert float(model.lipschitz_estimate()) == pytest.approx(4)
    assert prove(model).lipschitz == pytest.approx(4)


def test_the_estimate_of_a_mix_has_a_gradient_in_its_weight() -> None:
    class Mix(CertifiableModel):
        def __init__(self) -> None:
            super().__init__((1, 2, 2))
            self.flatten, self.inner, self.w = Flatten(), BROLinear(4, 4), nn.Parameter(torch.tensor(2.0))
            self.head = LastLayerNormalized(4, 3)

        def forward(self, images: Tensor) -> Tensor:
            x = self.flatten(images)
            return self.head(x + self.w * self.inner(x))

    model = Mix()
    estimate = model.lipschitz_estimate()
    (slope,) = torch.autograd.grad(estimate, model.w)
    assert (float(estimate.detach()), float(slope)) == pytest.approx((3, 1))
    assert prove(model).lipschitz == pytest.approx(3, rel=1e-5)


class Deciding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x  # decides


class AcrossTheBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)  # mixes


class EveryPair(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        pairs = x + x[:, None]  # pairs up
        return pairs.amax(1)


class Squared(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x  # multiplies


class Unknown(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(x, 1)  # sums up


class Writing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = (2 * x).add_(1.0)
        y *= 3
        return y + x


class Views(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.view(x.size(0), -1)
        y.mul_(2.0)  # writes
        return x + y


class Folding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(-1, 2)  # folds


class ByNumber(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(2, 4)  # counts


class Rolling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.roll(1, ())  # rolls on


class Picking(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:1]  # picks


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (Deciding(), "decides"),
        (AcrossTheBatch(), "mixes"),
        (EveryPair(), "pairs up"),
        (Squared(), "multiplies"),
        (Unknown(), "sums up"),
        (Views(), "writes"),
        (Folding(), "folds"),
        (ByNumber(), "counts"),
        (Rolling(), "rolls on"),
        (Picking(), "picks"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_refusal_names_file_and_line(model: nn.Module, word: str) -> None:
    with pytest.raises(BronetError) as refusal:
        prove(model, (4,))
    assert f"{__file__}:" in str(refusal.value)
    assert f"# {word}" in str(refusal.value)
    found = check(model, (4,))
    assert found.lipschitz is None
    assert __file__ in found.explanation


@pytest.mark.parametrize("images", [1, 2, 3, 5])
def test_no_thread_is_given_a_part_without_images(images: int) -> None:
    torch.set_num_threads(2)
    x = torch.rand(images, 4)
    parts = of_parts(lambda part: part, x, at_once=1)
    assert [len(part) for part in parts] == [1] * images
    assert torch.equal(torch.cat(parts), x)


def test_no_images_are_refused_in_one_line() -> None:
    network = prove(nn.Linear(4, 3), (4,))
    for compute in (network.certify, network.logits):
        with pytest.raises(BronetError, match="images must be at least one, got none"):
            compute(torch.zeros(0, 4))


@pytest.mark.parametrize(
    "module", [nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(3), nn.Upsample(scale_factor=2), nn.MaxPool2d(2), nn.Hardtanh()]
)
def test_windows_are_computed_on_the_device_of_their_images(module: nn.Module) -> None:
    (operation,) = read(module, (3, 4, 4)).operations
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(2, 3, 4, 4, dtype=torch.float64, device="cuda")
        assert operation.proved.apply(x).device.type == "cuda"


class ByTheirNumber(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.size(0)


def test_a_model_that_depends_on_the_number_of_images_is_refused() -> None:
    with pytest.raises(BronetError, match="ByTheirNumber must compute what is proved of it"):
        prove(ByTheirNumber(), (4,))


def test_what_is_changed_in_place_and_not_used_again_is_read() -> None:
    network, x = prove(Writing(), (4,)), images((4,), 3)
    torch.testing.assert_close(network.logits(x), Writing()(x))


class WrongRows(LastLayerNormalized):
    """A head whose forward uses rows that its proof does not see."""

    def rows(self) -> Tensor:
        return 3 * super().rows()


def test_a_layer_that_computes_something_else_is_refused() -> None:
    chain = Chain((1, 2, 2), {"flatten": Flatten(), "maxmin": MaxMin()}, WrongRows(4, 3))
    with pytest.raises(BronetError, match="head must compute what is proved of it"):
        prove(chain)
    assert not check(chain).certifiable


def test_a_patched_class_of_torch_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    own, model = nn.Conv2d._conv_forward, nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
    before = check(model, (1, 3, 3)).lipschitz
    monkeypatch.setattr(nn.Conv2d, "_conv_forward", lambda *args: 10 * own(*args))
    assert before is not None
    assert check(model, (1, 3, 3)).lipschitz == pytest.approx(10 * before)


def test_torch_modes_and_several_devices_are_refused() -> None:
    with torch.overrides.BaseTorchFunctionMode(), pytest.raises(BronetError, match="mode"):
        prove(nn.Linear(2, 2), (2,))
    with torch.device("cpu"):
        prove(nn.Linear(2, 2), (2,))
    with pytest.raises(BronetError, match="one device"):
        prove(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta")), (2,))


def test_a_model_in_training_mode_is_proved_as_in_evaluation_and_stays_in_it() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    network, x = prove(model, (2,)), images((2,), 5)
    assert model.training
    assert all(part.training for part in model.modules())
    torch.testing.assert_close(network.logits(x), model.double().eval()(x))


@pytest.mark.parametrize(
    "module",
    [nn.AdaptiveAvgPool2d((7, 7)), nn.Softplus(), nn.BatchNorm2d(4, track_running_stats=False)],
    ids=lambda module: type(module).__name__,
)
def test_bounds_that_were_too_small_are_right_or_refused(module: nn.Module) -> None:
    found = check(nn.Sequential(module), (4, 3, 3))
    if isinstance(module, nn.AdaptiveAvgPool2d):
        assert found.lipschitz is not None
        assert float(singular_values(module.double(), (4, 3, 3)).max()) <= found.lipschitz
    else:
        assert found.lipschitz is None
    with pytest.raises(BronetError, match="0 must take activations"):
        check(nn.Sequential(nn.Linear(4, 2, dtype=torch.complex64)), (4,))
