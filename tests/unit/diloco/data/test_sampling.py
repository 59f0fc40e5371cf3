"""The order of the samples."""

from collections.abc import Callable

import numpy as np
import pytest
from diloco.data.sampling import Permutation, Split, epoch_permutation, sample_indices, sequence_numbers
from hypothesis import given
from hypothesis import strategies as st

sizes = st.integers(1, 3000)
seeds = st.integers(0, 2**64)


@given(sizes, seeds)
def test_permutation_is_one_to_one_and_has_an_inverse(size: int, key: int) -> None:
    permutation, positions = Permutation(size, key), np.arange(size)
    samples = permutation.forward(positions)
    assert np.array_equal(np.sort(samples), positions)
    assert np.array_equal(permutation.inverse(samples), positions)


def test_permutation_of_a_huge_set_needs_no_memory_for_it() -> None:
    permutation = Permutation(10**15 + 37, 4)
    positions = np.array([0, 1, 10**15 + 36])
    samples = permutation.forward(positions)
    assert ((samples >= 0) & (samples < permutation.size)).all()
    assert np.array_equal(permutation.inverse(samples), positions)


@given(st.integers(1, 500), seeds, st.integers(0, 5000))
def test_every_epoch_has_every_sample_once(samples: int, seed: int, first: int) -> None:
    epoch = first // samples
    numbers = np.arange(epoch * samples, (epoch + 1) * samples)
    assert np.array_equal(np.sort(sample_indices(numbers, samples, seed)), np.arange(samples))


@given(st.integers(1, 500), seeds, st.lists(st.integers(0, 3000), min_size=1, max_size=50))
def test_sample_of_a_number_does_not_depend_on_what_else_is_asked(samples: int, seed: int, numbers: list[int]) -> None:
    together = sample_indices(np.array(numbers), samples, seed)
    alone = [int(sample_indices(np.array([n]), samples, seed)[0]) for n in numbers]
    assert together.tolist() == alone
    assert together.dtype == np.int64


def test_epochs_and_seeds_have_different_orders() -> None:
    orders = [epoch_permutation(1000, seed, epoch).forward(np.arange(1000)) for seed in (0, 1) for epoch in (0, 1, 2)]
    for i, a in enumerate(orders):
        for b in orders[:i]:
            # two random orders agree in one place on average; 8 or more has a probability of about 1e-5
            assert (a == b).sum() < 8
        # and none keeps neighbours together
        assert (np.abs(np.diff(a)) == 1).sum() < 12


def test_order_is_well_mixed() -> None:
    # Chi-square over 16 x 16 cells of (position, sample) for 16384 samples: 64 expected in each, 15*15 degrees of freedom as rows and
    # columns are fixed; mean 225, standard deviation sqrt(450) = 21. The order is fixed by the seed, so this cannot fail by chance.
    samples = epoch_permutation(16384, 3, 0).forward(np.arange(16384))
    cells = np.zeros((16, 16))
    np.add.at(cells, (np.arange(16384) // 1024, samples // 1024), 1)
    assert 225 - 5 * 21 < ((cells - 64) ** 2 / 64).sum() < 225 + 5 * 21


@given(st.integers(4, 200), seeds, st.integers(0, 300), st.data())
def test_sequence_numbers_of_a_sample_are_those_that_stand_for_it(samples: int, seed: int, end: int, data: st.DataObject) -> None:
    sample = data.draw(st.integers(0, samples - 1))
    expected = [n for n, s in enumerate(sample_indices(np.arange(end), samples, seed)) if s == sample]
    assert list(sequence_numbers(sample, samples, seed, end)) == expected


@given(st.integers(1, 1000), seeds, st.data())
def test_split_shares_out_all_samples(total: int, seed: int, data: st.DataObject) -> None:
    split = Split(total, data.draw(st.integers(0, total - 1)), seed)
    training = split.training_samples(np.arange(split.training))
    held_out = split.held_out_samples()
    assert (training.size, held_out.size) == (total - split.held_out, split.held_out)
    assert np.array_equal(np.sort(np.concatenate([training, held_out])), np.arange(total))


def test_shapes_are_kept() -> None:
    assert sample_indices(np.arange(6).reshape(2, 3), 4, 0).shape == (2, 3)
    assert sample_indices(np.empty(0, np.int64), 4, 0).shape == (0,)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: sample_indices(np.array([0]), 0, 0), "nothing to train on"),
        (lambda: sample_indices(np.array([-1]), 3, 0), "count from 0"),
        (lambda: Permutation(0, 1), "cannot permute 0"),
        (lambda: Permutation(3, 1).forward(np.array([3])), r"not all in 0\.\.2"),
        (lambda: Split(5, 5, 0), "cannot hold out 5 of 5"),
        (lambda: Split(5, 1, 0).training_samples(np.array([-1])), "count from 0"),
    ],
)
def test_impossible_requests_are_errors(call: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()
