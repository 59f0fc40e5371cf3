"""What a unit has settled in each local step, from what its ranks say."""

from __future__ import annotations

import pytest
from diloco.learner.leave import LoopError
from diloco.ranks.settled_counts import SettledCounts


def stepped(ranks: SettledCounts, *of_ranks: int | None) -> None:
    for rank, settled in enumerate(of_ranks):
        ranks.stepped(rank, settled)


def test_batches_are_the_same_on_all_ranks() -> None:
    ranks = SettledCounts(2)
    ranks.stepped(0, 4)
    assert ranks.ready(shards=False) == []
    ranks.stepped(1, 4)
    stepped(ranks, 3, 3)
    assert ranks.ready(shards=False) == [4, 3]
    assert ranks.ready(shards=False) == [], "each step once"


def test_ranks_that_differ_are_named_with_their_numbers_before_the_others_have_done_the_step() -> None:
    ranks = SettledCounts(4)
    stepped(ranks, 2, 2, 2, 2)
    assert ranks.ready(shards=False) == [2]
    ranks.stepped(0, 2)
    ranks.stepped(3, 3)
    with pytest.raises(LoopError, match="in local step 2 rank 0 settled 2 batches, and rank 3 settled 3 batches: the ranks"):
        ranks.ready(shards=False)


def test_a_rank_that_feeds_itself_beside_others_that_do_not_is_an_error() -> None:
    ranks = SettledCounts(2)
    stepped(ranks, 1, None)
    with pytest.raises(LoopError, match="rank 0 settled 1 batch, and rank 1 settled no batch, as it feeds itself"):
        ranks.ready(shards=False)
    every = SettledCounts(2)
    stepped(every, None, None)
    assert every.ready(shards=False) == [0]


def test_a_unit_has_settled_as_many_shards_as_its_slowest_rank() -> None:
    ranks = SettledCounts(2)
    for of_ranks in ((1, 0), (0, 0), (1, 1), (0, 1), (0, 2)):
        stepped(ranks, *of_ranks)
    # In all 1, 1, 2, 2, 2 of rank 0, and 0, 0, 1, 2, 4 of rank 1.
    assert ranks.ready(shards=True) == [0, 0, 1, 1, 0]


def test_steps_that_may_be_done_with_what_is_dealt() -> None:
    ranks = SettledCounts(2)
    assert ranks.most_steps(3) == 2
    stepped(ranks, 0, 0)
    stepped(ranks, 1, 0)
    # After two steps rank 0 reads its second shard. With five dealt it may take three more, in a step each; rank 1 one more than that.
    assert ranks.most_steps(5) == 2 + 3
