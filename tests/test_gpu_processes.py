"""On a GPU: what several processes exchange goes through NCCL, here in a group of one."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from bronet import BROConv2d
from bronet.layers.prepared import prepared
from bronet.ortho.spd import inverting_by, symmetric_inverse
from bronet.recipe import named_recipe, override
from bronet.train.nadam import FusedNAdam
from bronet.train.processes import BACKENDS, Processes
from bronet.train.shared_transforms import sharing
from sharded_steps import largest_difference, trained

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ALONE = Processes()


@pytest.fixture
def group_of_one() -> Iterator[None]:
    torch.cuda.set_device(0)
    dist.init_process_group(BACKENDS["cuda"], store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
def test_shared_inverses_are_those_of_one_process() -> None:
    A = torch.randn(2, 5, 6, 6, generator=torch.Generator().manual_seed(0)).cuda()
    S = A @ A.mT + torch.eye(6, device="cuda")
    expected = symmetric_inverse(S)
    with inverting_by(sharing(ALONE)):
        torch.testing.assert_close(symmetric_inverse(S), expected, atol=0, rtol=0)


@pytest.mark.usefixtures("group_of_one")
def test_inverses_prepared_on_streams_of_their_own_may_be_shared() -> None:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(BROConv2d(c, c, 3, rank=4, residual_depth=3) for c in (16, 16, 32))).cuda()
    inputs = [torch.randn(4, c, 8, 8, device="cuda") for c in (16, 16, 32)]
    expected = [layer(x) for layer, x in zip(layers, inputs, strict=True)]  # the grid is known from here on
    with inverting_by(sharing(ALONE)), prepared(layers):
        shared = [layer(x) for layer, x in zip(layers, inputs, strict=True)]
    torch.testing.assert_close(shared, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("group_of_one")
def test_sums_over_all_go_through_the_device_of_their_numbers() -> None:
    for device in ("cpu", "cuda"):
        x = torch.arange(3.0, device=device)
        total = x.clone()
        dist.all_reduce(total)  # as `Processes.sum` does where there are several
        assert torch.equal(total, x)


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("backbone", ["bro", "lipreg"])
def test_a_sharded_network_trains_like_a_whole_one(precision: str, backbone: str) -> None:
    """BRONet with LA and EMMA, fused NAdam in Lookahead: gathered, stepped on and cut by FSDP, in a group of one."""
    values = [f"train.precision={precision}", f"model.backbone={backbone}", "model.width=16", "model.depth=2"]
    recipe = override(named_recipe("digits/quickstart"), values)
    device = torch.device("cuda", 0)
    sharded, optimizer = trained(recipe, ALONE, device, sharded=True)
    whole, _ = trained(recipe, ALONE, device, sharded=False)
    assert isinstance(optimizer.optimizer, FusedNAdam)
    assert largest_difference(sharded.state_dict(), whole.state_dict()) < (1e-3 if precision == "float32" else 0.1)
