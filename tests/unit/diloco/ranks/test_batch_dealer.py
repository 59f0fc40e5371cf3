"""What the leader of a unit deals out of its leases, ahead of its own steps and to a rank that wants more."""

from __future__ import annotations

import threading

from builders.exchange import WAIT_TIMEOUT
from diloco.learner.unit_plan import WorkChange
from diloco.learner.work import AHEAD_BATCHES
from diloco.ranks.batch_dealer import BatchDealer
from diloco.ranks.samples import Ranges

BATCH = 4


class Unit:
    """In its first generation, with 10 batches of 4 samples leased."""

    def __init__(self) -> None:
        self.given: list[Ranges] = []
        self.dealer = BatchDealer(self.given.append)
        self.asked: list[int] = []
        self.connected = True
        self.dealer.follow(WorkChange(restart=True, asked=0, leases=((0, 40),)), 1, over=False)

    def deal_until(self, batches: int) -> None:
        self.dealer.deal(BATCH, lambda: self.dealer.dealt < batches)

    def ask(self, *, batches: int | None = None, ahead: int = 64) -> None:
        self.dealer.ask(0.0, batches, ahead, self._want)

    def _want(self, samples: int) -> bool:
        if self.connected:
            self.asked.append(samples)
        return self.connected


def test_batches_are_dealt_in_order_as_long_as_there_are_too_few() -> None:
    unit = Unit()
    unit.deal_until(2)
    assert unit.given == [((0, 4),), ((4, 8),)]
    unit.deal_until(2)
    assert unit.dealer.dealt == 2


def test_a_rank_gets_what_it_wants_at_once_and_the_rest_with_the_next_lease() -> None:
    unit = Unit()
    unit.dealer.want(3)
    assert unit.given == [], "it is not known how large a batch is"
    unit.deal_until(0)
    assert unit.dealer.dealt == 3
    unit.dealer.want(12)
    assert unit.dealer.dealt == 10
    unit.dealer.want(1)  # another rank, which has more than that
    unit.dealer.follow(WorkChange(leases=((100, 140),)), 1, over=False)
    unit.deal_until(0)
    assert unit.given[10:] == [((100, 104),), ((104, 108),)]


def test_once_it_is_over_nothing_is_dealt() -> None:
    unit = Unit()
    unit.deal_until(1)
    unit.dealer.follow(WorkChange(), 1, over=True)
    unit.deal_until(5)
    unit.dealer.want(5)
    assert unit.dealer.dealt == 1


def test_while_the_unit_rests_nothing_is_dealt_or_asked_for() -> None:
    unit = Unit()
    unit.deal_until(1)
    unit.dealer.follow(WorkChange(quorum=2), 1, over=False)
    unit.deal_until(5)
    unit.ask()
    assert (unit.dealer.dealt, unit.asked) == (1, [])
    assert "rests until a quorum of 2 learners trains" in unit.dealer.why_none


def test_batches_are_settled_in_the_generation_in_which_they_were_dealt() -> None:
    unit = Unit()
    unit.deal_until(2)
    unit.dealer.follow(WorkChange(restart=True, asked=0, leases=((200, 240),)), 2, over=False)
    unit.deal_until(3)
    assert unit.given[2] == ((200, 204),), "the leases from before are forgotten"
    assert unit.dealer.settle(3) == [(1, 4), (1, 4), (2, 4)]


def test_leases_are_held_for_all_that_a_rank_may_fetch_and_asked_for_again_where_nobody_heard() -> None:
    unit = Unit()
    unit.deal_until(1)
    unit.connected = False
    unit.ask()
    unit.connected = True
    unit.ask()
    unit.ask()
    assert unit.asked == [(64 + AHEAD_BATCHES) * BATCH - 36], "36 samples are leased and not dealt"


def test_two_threads_deal_every_sample_once_and_in_one_order() -> None:
    unit = Unit()
    unit.dealer.follow(WorkChange(leases=((40, 4000),)), 1, over=False)
    unit.deal_until(1)

    def want() -> None:
        for batches in range(1, 1001):
            unit.dealer.want(batches)

    other = threading.Thread(target=want)
    other.start()
    for batches in range(1, 1001):
        unit.deal_until(batches)
    other.join(WAIT_TIMEOUT)
    assert unit.given == [((start, start + BATCH),) for start in range(0, 4000, BATCH)]
