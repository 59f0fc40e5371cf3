"""Memory that is used again."""

import numpy as np
from diloco.algorithm.spare import SpareArrays


def kept(limit: int) -> SpareArrays:
    spare = SpareArrays(100)
    spare.keep(limit)
    return spare


def test_what_was_given_back_is_taken_again_also_for_another_size() -> None:
    spare = kept(1)
    first = spare.take(100)
    spare.give(first)
    second = spare.take(60)
    assert second.shape == (60,)
    assert np.shares_memory(first, second)


def test_what_is_in_use_is_never_handed_out() -> None:
    spare = kept(4)
    arrays = [spare.take(100) for _ in range(3)]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])


def test_no_more_are_kept_than_the_limit() -> None:
    spare = kept(1)
    for array in [spare.take(100) for _ in range(3)]:
        spare.give(array)
    assert len(spare._spare) == 1
    spare.keep(0)
    assert not spare._spare


def test_an_array_that_is_given_back_twice_is_handed_out_once() -> None:
    spare = kept(4)
    array = spare.take(100)
    spare.give(array)
    spare.give(array)
    assert not np.shares_memory(spare.take(100), spare.take(100))


def test_small_arrays_and_those_of_others_are_not_kept() -> None:
    spare = kept(4)
    spare.give(spare.take(20))
    spare.give(np.zeros(100, np.float32))
    assert not spare._spare
