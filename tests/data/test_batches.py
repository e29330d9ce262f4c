"""Order and randomness follow from names and numbers alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bronet.data.batches import endless_batch, pass_order, steps_per_epoch
from bronet.data.randomness import BatchShare, generator_for, stable_hash
from bronet.errors import BronetError


def test_the_hash_is_the_same_in_every_process_and_version() -> None:
    # Splits of published rows hang on it: this number is fixed for good.
    assert stable_hash(0, "split", 0) == 1659827131034057754


def test_seed_purpose_and_numbers_all_matter_and_do_not_run_together() -> None:
    keys = [
        (0, "a", (1, 2)),
        (1, "a", (1, 2)),
        (0, "b", (1, 2)),
        (0, "a", (2, 1)),
        (0, "a", (12,)),
        (0, "a", ()),
        (0, "a1", (2,)),
    ]
    generators = [generator_for(seed, purpose, *numbers) for seed, purpose, numbers in keys]
    draws = {float(torch.rand((), dtype=torch.float64, generator=g)) for g in generators}
    assert len(draws) == len(keys)


def test_an_epoch_visits_every_image_once_in_an_order_of_its_own() -> None:
    orders = [pass_order(100, 0, "epoch order", epoch) for epoch in (0, 1)]
    for order in orders:
        assert torch.equal(order.sort().values, torch.arange(100))
    assert not torch.equal(*orders)


@given(n=st.integers(1, 50), size=st.integers(1, 70), steps=st.integers(1, 12))
def test_an_endless_stream_visits_every_image_once_a_pass(n: int, size: int, steps: int) -> None:
    batches = [endless_batch(n, size, seed=1, purpose="extra", step=step) for step in range(steps)]
    assert {len(batch) for batch in batches} == {size}
    visited = torch.cat(batches).tolist()
    for start in range(0, len(visited) - n + 1, n):
        assert sorted(visited[start : start + n]) == list(range(n))


def test_passes_of_a_stream_have_orders_of_their_own() -> None:
    first, second = (endless_batch(40, 40, seed=1, purpose="extra", step=step) for step in (0, 1))
    assert not torch.equal(first, second)
    assert not torch.equal(first, endless_batch(40, 40, seed=1, purpose="other", step=0))


@given(size=st.integers(1, 20), world=st.integers(1, 6))
def test_the_shares_of_all_processes_are_the_batch(size: int, world: int) -> None:
    draws = torch.arange(size * world)
    shares = [BatchShare.of_rank(size * world, rank=rank, world=world) for rank in range(world)]
    assert torch.equal(torch.cat([share.take(draws) for share in shares]), draws)


def test_a_batch_that_cannot_be_shared_evenly_is_refused() -> None:
    with pytest.raises(BronetError, match="multiple of the 3 processes, got 10"):
        BatchShare.of_rank(10, rank=0, world=3)


@pytest.mark.parametrize(
    ("n", "batch_size", "named"), [(10, 11, "at most .* = 10, got 11"), (10, 0, "at least 1, got 0")]
)
def test_impossible_batches_are_refused(n: int, batch_size: int, named: str) -> None:
    with pytest.raises(BronetError, match=named):
        steps_per_epoch(n, batch_size)
