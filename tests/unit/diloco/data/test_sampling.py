"""The order of the samples."""

from collections.abc import Callable

import numpy as np
import pytest
from diloco.data.sampling import Permutation, epoch_permutation, sample_indices
from hypothesis import given
from hypothesis import strategies as st

sizes = st.integers(1, 3000)
seeds = st.integers(0, 2**64)


@given(sizes, seeds)
def test_permutation_is_one_to_one(size: int, key: int) -> None:
    positions = np.arange(size)
    assert np.array_equal(np.sort(Permutation(size, key).forward(positions)), positions)


def test_permutation_of_a_huge_set_needs_no_memory_for_it() -> None:
    permutation = Permutation(10**15 + 37, 4)
    positions = np.array([0, 1, 10**15 + 36])
    samples = permutation.forward(positions)
    assert ((samples >= 0) & (samples < permutation.size)).all()
    assert len(set(samples.tolist())) == 3


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
    ],
)
def test_impossible_requests_are_errors(call: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()
