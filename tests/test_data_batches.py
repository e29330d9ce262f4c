"""Order and randomness follow from names and numbers alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bronet.data.batches import epoch_batches, epoch_order, generator_for, stable_hash, steps_per_epoch
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
    orders = [epoch_order(100, seed=0, epoch=epoch) for epoch in (0, 1)]
    for order in orders:
        assert torch.equal(order.sort().values, torch.arange(100))
    assert not torch.equal(*orders)


@given(n=st.integers(1, 200), batch_size=st.integers(1, 200), data=st.data())
def test_a_resumed_epoch_is_the_tail_of_the_whole_one(n: int, batch_size: int, data: st.DataObject) -> None:
    batch_size = min(n, batch_size)
    steps = steps_per_epoch(n, batch_size)
    start = data.draw(st.integers(0, steps))
    whole = list(epoch_batches(n, batch_size, seed=3, epoch=5))
    tail = list(epoch_batches(n, batch_size, seed=3, epoch=5, start_step=start))
    assert [step for step, _ in whole] == list(range(steps))
    assert [step for step, _ in tail] == list(range(start, steps))
    for (_, expected), (_, found) in zip(whole[start:], tail, strict=True):
        assert torch.equal(expected, found)


@given(n=st.integers(1, 200), batch_size=st.integers(1, 200))
def test_batches_are_full_and_share_no_image(n: int, batch_size: int) -> None:
    batch_size = min(n, batch_size)
    batches = [index for _, index in epoch_batches(n, batch_size, seed=0, epoch=0)]
    assert {len(index) for index in batches} == {batch_size}
    visited = torch.cat(batches)
    assert len(set(visited.tolist())) == len(visited) == n // batch_size * batch_size


@pytest.mark.parametrize(
    ("n", "batch_size", "start_step", "named"),
    [(10, 11, 0, "at most .* = 10, got 11"), (10, 0, 0, "at least 1, got 0"), (10, 5, 3, "<= 2, got 3")],
)
def test_impossible_batches_are_refused_before_the_first_one(
    n: int, batch_size: int, start_step: int, named: str
) -> None:
    with pytest.raises(BronetError, match=named):
        epoch_batches(n, batch_size, seed=0, epoch=0, start_step=start_step)
