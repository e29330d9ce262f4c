"""BRO weights by parametrization, and BRO layers, in what PyTorch does with modules: compile, copy, store, share."""

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from bronet import BROConv2d, BROLinear, BronetError, check
from bronet.layers import orthogonal_bro
from torchrun import ENVIRONMENT, SECONDS, torchrun_words

ROUNDING = 1e-5

# What the tests and the processes they start share: the modules, an input for each, and their outputs and gradients.
MODULES = """
import torch
from torch import nn
from bronet import BROConv2d, BROLinear
from bronet.layers import orthogonal_bro

def modules():
    torch.manual_seed(0)
    made = {
        "parametrized": (orthogonal_bro(nn.Linear(8, 6)), torch.randn(4, 8)),
        "linear": (BROLinear(8, 6), torch.randn(4, 8)),
        "conv": (BROConv2d(4, 6), torch.randn(4, 4, 5, 5)),
    }
    nn.init.normal_(made["conv"][0].weight)
    return made

def gradients(module, x):
    module.zero_grad()
    (module(x) ** 3).mean().backward()
    return [parameter.grad.clone() for parameter in module.parameters()]
"""
scope: dict = {}
exec(MODULES, scope)
NAMES = list(scope["modules"]())


def module_and_input(name: str) -> tuple[nn.Module, torch.Tensor]:
    return scope["modules"]()[name]


def fresh(name: str) -> nn.Module:
    made = {"parametrized": lambda: orthogonal_bro(nn.Linear(8, 6)), "linear": lambda: BROLinear(8, 6)}
    return made.get(name, lambda: BROConv2d(4, 6))()


@pytest.mark.parametrize(("rows", "columns"), [(6, 6), (9, 4), (4, 9), (2, 1), (2, 2)])
@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e20, 0.0])
def test_singular_values_are_one_for_every_parameter(rows: int, columns: int, scale: float) -> None:
    """With V = 0 nothing is reflected, and the weight is the identity's rows and columns."""
    torch.manual_seed(rows)
    linear = orthogonal_bro(nn.Linear(columns, rows, bias=False))
    with torch.no_grad():
        linear.parametrizations.weight.original.mul_(scale)  # type: ignore[union-attr, operator]
        values = torch.linalg.svdvals(linear.weight)
    torch.testing.assert_close(values, torch.ones(min(rows, columns)), rtol=0, atol=1e-3)


def test_singular_values_stay_one_while_training() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(orthogonal_bro(nn.Linear(6, 6)), nn.ReLU(), orthogonal_bro(nn.Linear(6, 3)))
    before = model[0].weight.clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(16, 6)).square().mean().backward()
        optimizer.step()
    assert float((model[0].weight - before).detach().norm()) > 0.01
    for layer in (model[0], model[2]):
        values = torch.linalg.svdvals(layer.weight.detach())
        torch.testing.assert_close(values, torch.ones_like(values), rtol=0, atol=1e-4)
    bound = check(model, (6,)).lipschitz
    assert bound is not None
    assert 1 - 1e-4 <= bound <= 1 + 1e-4


def test_the_weight_is_the_layer() -> None:
    """`BROLinear` with the same V computes the same function."""
    linear, layer = orthogonal_bro(nn.Linear(8, 6, bias=False)), BROLinear(8, 6, ridge=1e-5)
    with torch.no_grad():
        layer.weight.copy_(linear.parametrizations.weight.original)  # type: ignore[union-attr, arg-type]
    x = torch.randn(5, 8)
    torch.testing.assert_close(layer(x), linear(x), rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("name", NAMES)
def test_copies_and_stored_states_compute_the_same(name: str) -> None:
    module, x = module_and_input(name)
    assert torch.equal(copy.deepcopy(module)(x), module(x))
    other, file = fresh(name), io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    assert not torch.equal(other(x), module(x))
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x), module(x))


@pytest.mark.parametrize("name", ["linear", "conv"])
def test_layers_can_be_pickled(name: str) -> None:
    module, x = module_and_input(name)
    module(x).sum().backward()
    assert torch.equal(pickle.loads(pickle.dumps(module))(x), module(x))


def test_a_parametrized_module_cannot_be_pickled_which_is_torchs_rule() -> None:
    with pytest.raises(RuntimeError, match="only supported through state_dict"):
        pickle.dumps(module_and_input("parametrized")[0])


@pytest.mark.parametrize("name", NAMES)
def test_autocast_rounds_products_and_not_factorisations(name: str) -> None:
    module, x = module_and_input(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = module(x)
        y.float().square().mean().backward()
    assert y.dtype == torch.bfloat16
    size = float(x.flatten(1).norm(dim=1).max())
    torch.testing.assert_close(y.float(), module(x), rtol=0, atol=0.05 * size)  # bf16, times the condition of V'V
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())
    if name == "parametrized":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert module.weight.dtype == torch.float32
            torch.testing.assert_close(module.weight, copy.deepcopy(module).weight, rtol=0, atol=0)


COMPILED = """
import warnings
warnings.simplefilter("error", UserWarning)
for name, (module, x) in modules().items():
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), module(x), rtol=0, atol=1e-5)
    for found, expected in zip(gradients(compiled, x), gradients(module, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    print(name)
"""


def test_torch_compile_takes_each_in_one_graph(tmp_path: Path) -> None:
    """In a process of its own: run-time shape checks of the tests are not for compilers."""
    words = [sys.executable, "-c", MODULES + COMPILED]
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == NAMES


SHARED = """
import sys
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from bronet.cli import exit_at_once
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
for name, (module, x) in modules().items():
    expected = gradients(module, x)
    found = gradients(DistributedDataParallel(module), x.chunk(2)[rank])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    if rank == 0:
        print(name)
dist.destroy_process_group()
exit_at_once(0)
"""


def test_two_processes_share_the_gradient_of_one(tmp_path: Path) -> None:
    script = tmp_path / "shared.py"
    script.write_text(MODULES + SHARED)
    words = [*torchrun_words(2), str(script)]
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == NAMES


@pytest.mark.parametrize(
    ("module", "name", "rank", "message"),
    [
        (nn.Linear(4, 3), "weights", None, "'weights' must be a parameter of Linear, which has none of this name"),
        (
            nn.Linear(4, 3),
            "bias",
            None,
            r"bias must be a matrix, got shape \(3,\); for convolutions use bronet.BROConv2d",
        ),
        (nn.Linear(4, 3), "weight", 4, "rank must satisfy 1 <= n < m = 4, got n = 4"),
        (nn.Linear(1, 1), "weight", None, "needs 2 channels at least, in or out"),
    ],
)
def test_what_is_no_matrix_is_refused(module: nn.Module, name: str, rank: int | None, message: str) -> None:
    with pytest.raises(BronetError, match=message):
        orthogonal_bro(module, name, rank=rank)
