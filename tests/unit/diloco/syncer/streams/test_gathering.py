"""Answers of a unit of several ranks, portion by portion."""

import dataclasses

import numpy as np
from diloco.algorithm.codec import Coding
from diloco.algorithm.events import Marks, Offer
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.pieces import deal, portion
from diloco.syncer.streams.gathering import Gathering

SPEC = TensorSpec("a", (6,))
(FRAGMENT,) = make_fragments(Layout([SPEC]), 1)
PORTIONS = [portion(FRAGMENT, pieces) for pieces in deal([SPEC], 3)]


def offer(t: int = 1, tokens: int = 8) -> Offer:
    return Offer(0, t, Coding.FLOAT32, -1, 1, tokens, Marks("u/1/1", 2, 8, 1))


def payload(rank: int) -> memoryview:
    return memoryview(np.full(2, rank, np.float32)).cast("B")


def test_an_answer_is_whole_with_the_last_portion_in_the_order_of_the_ranks() -> None:
    gathering = Gathering()
    assert gathering.add(2, offer(), PORTIONS[2], payload(2)) is None
    assert gathering.add(0, offer(), PORTIONS[0], payload(0)) is None
    assert gathering.has(2, offer())
    assert not gathering.has(1, offer())
    whole = gathering.add(1, offer(), PORTIONS[1], payload(1))
    assert whole is not None
    assert whole.offer == offer()
    assert [(own, bytes(part)) for own, part in whole.parts] == [(PORTIONS[rank], bytes(payload(rank))) for rank in range(3)]
    assert not gathering.has(0, offer()), "nothing of it is left"


def test_answers_to_two_exchanges_are_gathered_beside_each_other() -> None:
    gathering = Gathering()
    for rank in range(2):
        for t in (1, 2):
            assert gathering.add(rank, offer(t), PORTIONS[rank], payload(rank)) is None
    for t in (2, 1):
        whole = gathering.add(2, offer(t), PORTIONS[2], payload(2))
        assert whole is not None
        assert whole.offer.t == t


def test_ranks_that_disagree_are_named_with_what_they_say() -> None:
    gathering = Gathering()
    assert gathering.disagreement(1, offer()) == ""
    gathering.add(1, offer(), PORTIONS[1], payload(1))
    assert gathering.disagreement(2, offer()) == ""
    assert gathering.disagreement(2, offer(tokens=9)) == (
        "the ranks disagree on fragment 0 of outer step 1: "
        "rank 2 says 9 tokens in 1 steps, 2 samples with 8 tokens in 1 steps in all, FLOAT32 against version -1, "
        "rank 1 8 tokens in 1 steps, 2 samples with 8 tokens in 1 steps in all, FLOAT32 against version -1"
    )


def test_portions_of_one_answer_may_come_with_a_report_between_them() -> None:
    """The clock of the newest report goes with each portion, so it may differ from rank to rank."""
    gathering = Gathering()
    gathering.add(0, offer(), PORTIONS[0], payload(0))
    later = dataclasses.replace(offer(), marks=dataclasses.replace(offer().marks, seen=7))
    assert gathering.disagreement(1, later) == ""
    gathering.add(1, later, PORTIONS[1], payload(1))
    assert gathering.has(0, later)
    whole = gathering.add(2, later, PORTIONS[2], payload(2))
    assert whole is not None
    assert len(whole.parts) == 3


def test_a_lost_ranks_portions_may_come_again() -> None:
    gathering = Gathering()
    gathering.add(0, offer(), PORTIONS[0], payload(0))
    gathering.add(1, offer(), PORTIONS[1], payload(1))
    gathering.forget(1)
    assert gathering.has(0, offer())
    assert not gathering.has(1, offer())
    gathering.forget(0)
    assert gathering.disagreement(0, offer(tokens=9)) == "", "no unit has said anything"


def test_nothing_is_left_of_an_exchange_that_is_over() -> None:
    gathering = Gathering()
    gathering.add(0, offer(), PORTIONS[0], payload(0))
    gathering.closed(0, 1)
    assert not gathering.has(0, offer())


def test_the_portions_of_one_refused_answer_are_one_refusal_and_a_repetition_is_another() -> None:
    gathering = Gathering()
    assert [gathering.refused_before(rank, offer()) for rank in (1, 0, 2)] == [False, True, True]
    assert not gathering.refused_before(1, offer())
    assert not gathering.refused_before(0, offer(2))


def test_a_portion_that_a_lost_rank_sends_again_is_no_further_refusal() -> None:
    gathering = Gathering()
    assert [gathering.refused_before(rank, offer()) for rank in (0, 1)] == [False, True]
    gathering.forget(1)
    assert gathering.refused_before(1, offer())
    assert not gathering.refused_before(0, offer()), "rank 0 was not lost"


def test_refused_answers_are_remembered_in_bounds() -> None:
    gathering = Gathering()
    for t in range(200):
        gathering.refused_before(0, offer(t))
    assert len(gathering._refused) == 64
    assert gathering.refused_before(1, offer(199))
    assert not gathering.refused_before(1, offer(0))
