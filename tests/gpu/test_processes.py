"""On a GPU: what several processes exchange goes through NCCL, here in a group of one."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from bronet.recipe import named_recipe, override
from bronet.training.distributed import BACKENDS, Processes
from bronet.training.optimizers import NAdam
from sharded_steps import largest_difference, trained

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
ALONE = Processes()


@pytest.fixture
def group_of_one() -> Iterator[None]:
    torch.cuda.set_device(0)
    dist.init_process_group(BACKENDS["cuda"], store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


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
    sharded, sharded_step = trained(recipe, ALONE, device, sharded=True)
    whole, _ = trained(recipe, ALONE, device, sharded=False)
    assert isinstance(sharded_step.optimizer, NAdam)
    assert largest_difference(sharded.state_dict(), whole.state_dict()) < (1e-3 if precision == "float32" else 0.1)
