"""Our layers in torch's own tools: torch.func, export, onnx, jit, fx, autocast and compile."""

import copy
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.testing import assert_close

import bronet
from bronet import BronetError, Chain
from bronet.layers import (
    Bias,
    Block,
    BROConv2d,
    BROLinear,
    Centring,
    CholeskyLinear,
    Flatten,
    LastLayerNormalized,
    MaxMin,
    Normalization,
)

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),  # of torch.func's own
]


def network(dtype: torch.dtype = torch.float64) -> Chain:
    """Return a network with every kind of derivative that is written by hand: in space, in blocks, strided, dense."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [
        Normalization((0.4, 0.5)),
        Block(BROConv2d(2, 4, 3, residual_depth=2), Bias(4), MaxMin()),
        Block(BROConv2d(4, 8, 3, stride=2, rank=3, residual_depth=2), Centring(8), MaxMin()),
        Flatten(),
        BROLinear(32, 12, rank=5),
        MaxMin(),
        CholeskyLinear(12, 6),
    ]
    return Chain((2, 4, 4), layers, LastLayerNormalized(6, 3)).to(dtype).eval()


@pytest.fixture
def model() -> Chain:
    return network()


@pytest.fixture
def images() -> Tensor:
    return torch.rand(3, 2, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


Parameters = dict[str, Tensor]


def loss_of(model: nn.Module) -> Callable[[Parameters, Tensor, Tensor], Tensor]:
    """Return the loss of one image as a function of the parameters, as torch.func wants it."""
    buffers = dict(model.named_buffers())

    def loss(parameters: Parameters, image: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(model, (parameters, buffers), (image[None],))
        return F.cross_entropy(logits, label[None])

    return loss


def plain(model: nn.Module) -> Parameters:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def test_gradients_per_sample_are_those_of_one_image_after_another(model: Chain, images: Tensor) -> None:
    labels = torch.tensor([0, 2, 1])
    together = vmap(grad(loss_of(model)), in_dims=(None, 0, 0))(plain(model), images, labels)
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        model.zero_grad()
        F.cross_entropy(model(image[None]), label[None]).backward()
        for name, parameter in model.named_parameters():
            assert_close(together[name][index], parameter.grad, msg=lambda text, name=name: f"{name}: {text}")


def test_jacobians_forwards_and_backwards_are_those_of_autograd(model: Chain, images: Tensor) -> None:
    expected = torch.autograd.functional.jacobian(model, images)  # by our own backward passes
    assert_close(jacrev(model)(images), expected)
    assert_close(jacfwd(model)(images), expected)
    each = vmap(jacrev(lambda image: model(image[None])[0]))(images)
    assert_close(each, expected[range(3), :, range(3)])
    moved = torch.ones_like(images)
    value, slope = jvp(model, (images,), (moved,))
    assert_close(value, model(images))
    assert_close(slope, (expected * moved).flatten(2).sum(-1))


def test_slopes_along_the_parameters_are_those_of_differences(model: Chain, images: Tensor) -> None:
    parameters, step = plain(model), 1e-5
    generator = torch.Generator().manual_seed(2)
    along = {name: torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in parameters.items()}

    def at(parameters: Parameters) -> Tensor:
        return functional_call(model, (parameters, dict(model.named_buffers())), (images,))

    _, slope = jvp(at, (parameters,), (along,))
    ahead, behind = (at({name: p + s * along[name] for name, p in parameters.items()}) for s in (step, -step))
    assert_close(slope, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-7)


def test_an_ensemble_of_networks_is_one_vmap(model: Chain, images: Tensor) -> None:
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5).add_(torch.randn(parameter.shape, dtype=parameter.dtype), alpha=0.1)
    stacked, buffers = torch.func.stack_module_state([model, other])
    out = vmap(lambda p, b: functional_call(model, (p, b), (images,)))(stacked, buffers)
    assert_close(out, torch.stack((model(images), other(images))))


def test_second_derivatives_of_a_weight_are_those_of_differences() -> None:
    """By torch.func; a second pass backwards through our own gradients is refused instead of being wrong."""
    torch.manual_seed(0)
    layer, x = BROConv2d(2, 2, 3).double(), torch.rand(1, 2, 3, 3, dtype=torch.float64)
    V, step = layer.weight.detach() + 0.1 * torch.randn_like(layer.weight.detach()), 1e-5

    def size(V: Tensor) -> Tensor:
        return functional_call(layer, {"weight": V}, (x,)).pow(3).sum()

    H = hessian(size)(V).reshape(V.numel(), -1)
    assert_close(H, H.mT)
    unit = torch.zeros(V.numel(), dtype=V.dtype)
    unit[3] = step
    ahead, behind = (grad(size)(V + sign * unit.view_as(V)) for sign in (1, -1))
    assert_close(H[3], ((ahead - behind) / (2 * step)).flatten(), rtol=1e-4, atol=1e-6)
    for make in (BROConv2d(2, 2, 3), BROConv2d(6, 6, 3, rank=3), BROLinear(4, 4), CholeskyLinear(4, 4)):
        y = make(torch.rand(1, 2 if make.weight.shape[0] == 2 else make.weight.shape[0], 3, 3)).square().sum()
        (once,) = torch.autograd.grad(y, make.weight, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            once.square().sum().backward()


@pytest.mark.parametrize("batch", [None, torch.export.Dim("batch")], ids=["fixed", "any batch"])
def test_export_of_a_model_called_directly_gives_its_program(batch: torch.export.Dim | None, images: Tensor) -> None:
    model = network()
    shapes = None if batch is None else ({0: batch},)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, (images,), dynamic_shapes=shapes).module()
    assert_close(program(images), model(images))
    if batch is not None:
        assert_close(program(images[:2]), model(images[:2]))


def test_an_export_leaves_nothing_behind_in_the_tables_that_layers_keep() -> None:
    layer, x = BROConv2d(3, 5, 3), torch.rand(2, 3, 7, 13)  # of a size that no other test has
    torch.export.export(nn.Sequential(layer), (x,))
    assert type(layer(x)) is Tensor


@pytest.mark.slow
def test_onnx_takes_frozen_weights_and_says_so_without(images: Tensor, tmp_path: Path) -> None:
    onnxruntime, model = pytest.importorskip("onnxruntime"), network(torch.float32)
    x = images.float()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with bronet.frozen(model, portable=True):
            model(x)
            torch.onnx.export(model, (x,), tmp_path / "model.onnx", dynamo=True, verbose=False)
        with pytest.raises(Exception, match=r"inside bronet.frozen\(model, portable=True\)"):
            torch.onnx.export(model, (x,), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (logits,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert_close(torch.from_numpy(logits), model(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_jit_trace_computes_what_the_model_computes(model: Chain, images: Tensor, tmp_path: Path) -> None:
    jaxtyping.config.update("jaxtyping_disable", True)  # which takes sizes for numbers
    try:
        traced = torch.jit.trace(model, images)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    torch.jit.save(traced, tmp_path / "model.pt")
    loaded = torch.jit.load(tmp_path / "model.pt")
    for few in (images, images[:2]):
        assert_close(loaded(few), model(few))


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Block(BROConv2d(2, 4, 3), Bias(4), MaxMin())
        self.second, self.act, self.last = BROConv2d(4, 4, 3), MaxMin(), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(torch.flatten(x + self.act(self.second(x)), 1))


def test_layers_are_leaves_of_a_symbolic_trace(images: Tensor) -> None:
    model = Own().double()
    traced = fx.symbolic_trace(model)
    called = [str(node.target) for node in traced.graph.nodes if node.op == "call_module"]
    assert called == ["first", "second", "act", "last"]
    assert_close(traced(images), model(images))
    assert_close(bronet.certified_radius(traced, images), bronet.certified_radius(model, images))
    with pytest.raises(BronetError, match="a BROLinear alone has no graph"):
        fx.symbolic_trace(BROLinear(2, 2))


def test_autocast_keeps_gradients_of_torch_func_in_the_parameters_precision(images: Tensor) -> None:
    model, x, label = network(torch.float32), images.float()[0], torch.tensor(1)
    exact = grad(loss_of(model))(plain(model), x, label)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = grad(loss_of(model))(plain(model), x, label)
    for name, expected in exact.items():
        assert rounded[name].dtype == torch.float32
        assert_close(rounded[name], expected, rtol=0, atol=0.05 * float(expected.abs().max() + 1))


COMPILED = """
import torch, bronet
from torch.testing import assert_close
torch.manual_seed(0)
layers = [bronet.BROConv2d(2, 4), bronet.MaxMin(), bronet.layers.Flatten(), bronet.BROLinear(64, 8)]
model = bronet.Chain((2, 4, 4), layers, bronet.LastLayerNormalized(8, 3)).eval()
x = torch.rand(3, 2, 4, 4)
expected = model(x)
gradients = torch.autograd.grad(expected.sum(), list(model.parameters()))
compiled = torch.compile(model)
logits = compiled(x)
assert_close(logits, expected, rtol=1e-4, atol=1e-5)
for ours, theirs in zip(torch.autograd.grad(logits.sum(), list(model.parameters())), gradients):
    assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
assert_close(bronet.certified_radius(compiled, x), bronet.certified_radius(model, x))
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
@pytest.mark.slow
def test_a_compiled_network_has_the_same_logits_gradients_and_radii() -> None:
    """In a process of its own, without checks of shapes, which torch.compile cannot follow."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
