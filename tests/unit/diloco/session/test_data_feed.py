"""Indices and shards that sequence numbers stand for."""

from __future__ import annotations

import numpy as np
import pytest
from diloco.session.data_feed import LeasedBatches, Shard, shard_of
from hypothesis import given
from hypothesis import strategies as st


def sampler(batch_size: int, samples: int | None, seed: int = 0) -> LeasedBatches:
    """Return batches of twelve sequence numbers. They go on where the last iteration was left."""
    source = iter([np.arange(start, start + batch_size) for start in range(0, 12, batch_size)])
    return LeasedBatches(lambda: source, batch_size, samples, seed)


def test_in_each_epoch_every_sample_comes_once_in_an_order_of_its_own() -> None:
    order = [index for batch in sampler(4, samples=6) for index in batch]
    assert sorted(order[:6]) == sorted(order[6:]) == list(range(6))
    assert order[:6] != order[6:]
    assert order != [index for batch in sampler(4, samples=6, seed=1) for index in batch]
    assert all(type(index) is int for index in order), "data sets index lists, and tell numpy's integers from Python's"


def test_the_order_does_not_depend_on_the_batch_size() -> None:
    assert [index for batch in sampler(3, samples=5) for index in batch] == [index for batch in sampler(4, samples=5) for index in batch]


def test_without_a_number_of_samples_the_indices_are_the_sequence_numbers() -> None:
    assert list(sampler(6, samples=None)) == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]


def test_an_iteration_goes_on_where_the_last_one_was_left_and_has_no_length() -> None:
    batches = sampler(4, samples=None)
    assert next(iter(batches)) == [0, 1, 2, 3]
    assert list(batches) == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert (batches.batch_size, batches.drop_last, hasattr(batches, "__len__")) == (4, True, False)
    assert repr(sampler(4, samples=1)) == "<leased batches of 4 indices of 1 sample>"


def test_epochs_are_those_of_the_job_as_far_as_the_newest_batch_tells() -> None:
    batches = sampler(4, samples=8)
    assert batches.epoch == 0.0
    assert [batches.epoch for _ in batches] == [0.5, 1.0, 1.5]
    with pytest.raises(ValueError, match="there are no epochs without samples="):
        _ = sampler(4, samples=None).epoch


def test_a_data_set_without_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="samples must be at least 1, not 0"):
        sampler(4, samples=0)


@pytest.mark.slow
@given(count=st.integers(1, 40), epoch=st.integers(0, 5), seed=st.integers(0, 3))
def test_every_epoch_has_each_shard_once(count: int, epoch: int, seed: int) -> None:
    shards = [shard_of(number, count, seed) for number in range(epoch * count, (epoch + 1) * count)]
    assert sorted(shards, key=lambda shard: shard.index) == [Shard(index, count, epoch) for index in range(count)]
