"""The orders of a unit under any interleaving of ranks, messages and values."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from builders.exploration import examples
from builders.rank_simulation import BATCH, SimulatedUnit, in_lockstep, tokens
from diloco.contract import Exit
from diloco.learner.inbox import PullWanted, RefusedForGood, RestWanted, Welcomed
from diloco.learner.push_header import PushCounts
from diloco.learner.unit_plan import new_unit
from diloco.ranks.counts import Counts
from diloco.ranks.orders import Adopt, Begin, Cursor, Drain, Finish, Order, OrderError, Quit, ReadOut, Release, Version
from diloco.ranks.samples import DataRank, numbers_of_rank
from diloco.ranks.schedule import MOST_AHEAD, ahead
from hypothesis import given, settings
from hypothesis import strategies as st

units = st.builds(
    lambda ranks, fragments, steps, ahead, bare, batches: SimulatedUnit(
        ranks,
        fragments,
        steps,
        ahead=ahead,
        bare=frozenset((rank, fragment) for rank, fragment in bare if 0 < rank < ranks),
        batches=batches,
    ),
    st.integers(2, 4),
    st.integers(1, 3),
    st.integers(1, 12),
    st.integers(1, 4),
    st.sets(st.tuples(st.integers(1, 3), st.integers(0, 2)), max_size=3),
    st.integers(1, 3),
)
chances = st.integers(0, 1 << 32).map(Random)


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(units, chances, st.sets(st.integers(0, 400), max_size=3))
def test_all_ranks_do_the_same_at_the_same_steps_and_none_waits_for_ever(unit: SimulatedUnit, chance: Random, restarts: set[int]) -> None:
    """Also when the syncer restarts after so many events."""

    def restart(done: int) -> None:
        if done in restarts and unit.t < unit.steps:
            unit.syncer_restarts()

    unit.run(chance, meanwhile=restart)
    first = unit.ranks[0].done
    assert all(rank.done == first for rank in unit.ranks)
    assert first[-1][1] == Finish(unit.steps)
    assert [step for step, action in first if isinstance(action, Release)] == list(range(unit.ranks[0].cursor.step))
    assert all(rank.trained == unit.ranks[0].trained for rank in unit.ranks)
    for rank in unit.ranks:
        owned = {fragment for fragment, owners in enumerate(unit.owners) if rank.rank in owners}
        assert rank.received == {fragment: unit.newest[fragment] for fragment in owned}, "it finishes with the last version of each"


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(units, chances)
def test_a_push_counts_the_tokens_of_all_ranks_since_the_adoption(unit: SimulatedUnit, chance: Random) -> None:
    unit.run(chance)
    unit.settle()
    adopted = dict.fromkeys(range(unit.fragments), 0)
    expected: list[tuple[int, int, int, int, int, int]] = []
    finished = min(unit.schedule.counts.step, unit.ranks[0].cursor.step)
    for step, action in unit.ranks[0].done:
        if isinstance(action, Adopt):
            adopted[action.fragment] = step
        if isinstance(action, ReadOut) and step <= finished:
            since = range(adopted[action.fragment] + 1, step + 1)
            total = sum(tokens(rank.rank, n) for rank in unit.ranks for n in since)
            everything = sum(tokens(rank.rank, n) for rank in unit.ranks for n in range(1, step + 1))
            expected.append((action.fragment, action.t, len(since), total, BATCH * unit.batches * step, everything))
    found = [(x.fragment, x.t, x.steps, x.tokens, x.samples_done, x.tokens_done) for x in unit.counted]
    assert found == expected


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(units, chances, st.integers(0, 400), st.integers(0, 3))
def test_a_rank_that_is_told_to_drain_drains_all_at_one_step(unit: SimulatedUnit, chance: Random, when: int, who: int) -> None:
    rank = unit.ranks[who % len(unit.ranks)]

    def sigterm(done: int) -> None:
        if done == when:
            unit._to_leader(rank, unit.schedule.drain)

    unit.run(chance, meanwhile=sigterm)
    first = unit.ranks[0].done
    assert first[-1][1] in (Drain(), Finish(unit.steps))
    assert all(other.done == first for other in unit.ranks)


def begun(ranks: int = 2, fragments: int = 1, *, ahead: int = 1, leases: int = 30) -> SimulatedUnit:
    """A unit with work, all of whose ranks have adopted version 0 of all fragments and train."""
    unit = SimulatedUnit(ranks, fragments, 1000, ahead=ahead)
    for _ in range(leases):
        unit.lease()
    for rank in unit.ranks:
        while rank.stream:
            unit.receive(rank)
    in_lockstep(unit, 5 * ranks * fragments)
    return unit


def adoptions_and_reads(unit: SimulatedUnit, rank: int) -> list[type]:
    return [type(action) for _, action in unit.ranks[rank].done if isinstance(action, (Adopt, ReadOut))]


def test_while_the_unit_rests_no_step_is_released() -> None:
    unit = begun(leases=1)
    schedule = unit.schedule
    step = schedule.state.step
    assert schedule.boundary([RestWanted(2)], ()).work.quorum == 2
    assert schedule.release(step, 4) == []
    assert schedule.boundary([], ()).repeat_progress
    schedule.boundary([RestWanted(0)], ())
    assert [order.step for order in schedule.release(step, 4)] == list(range(step, step + 5))


@pytest.mark.parametrize("steps_ahead", [1, 3])
def test_no_rank_waits_while_messages_take_no_longer_than_the_steps_ahead(steps_ahead: int) -> None:
    unit = begun(3, 2, ahead=steps_ahead)
    before = [rank.waited for rank in unit.ranks]
    began = [rank.cursor.step for rank in unit.ranks]
    for _ in range(4):
        unit.syncer_steps()
        in_lockstep(unit, 10, steps_ahead)
    assert [rank.waited for rank in unit.ranks] == before
    assert all(rank.cursor.step > step + 30 for rank, step in zip(unit.ranks, began, strict=True))


def test_a_rank_that_has_no_new_value_keeps_it_from_being_adopted_and_delays_nobody() -> None:
    unit = begun()
    unit.syncer_steps()
    unit.receive(unit.ranks[0])
    in_lockstep(unit, 20)
    assert [action.version.t for _, action in unit.ranks[0].done if isinstance(action, Adopt)] == [0]
    assert unit.ranks[1].cursor.step > 15
    unit.receive(unit.ranks[1])
    in_lockstep(unit, 5)
    for rank in unit.ranks:
        assert [action.version.t for _, action in rank.done if isinstance(action, Adopt)] == [0, 1]


def test_a_refused_unit_ends_on_all_ranks() -> None:
    unit = SimulatedUnit(2, 1, 10)
    unit.inbox.append(RefusedForGood(Exit.REFUSED_FENCED, "a newer attempt exists"))
    in_lockstep(unit, 3)
    for rank in unit.ranks:
        assert rank.done == [(0, Quit(Exit.REFUSED_FENCED, "a newer attempt exists"))]


@pytest.mark.parametrize(
    ("welcomed", "done"), [(False, [Adopt, Adopt, ReadOut]), (True, [Adopt, Adopt])], ids=["of this session", "from before a welcome"]
)
def test_a_pull_waits_for_the_adoption_of_the_value_before_it_and_is_not_answered_after_a_welcome(welcomed: bool, done: list[type]) -> None:
    """At a welcome the syncer has given up waiting for it, also if it goes on with this very session."""
    unit = begun()
    unit.t = 1
    unit.broadcast(0, 1)
    unit.receive(unit.ranks[0])
    unit.inbox.append(PullWanted(1, 0, 2))
    in_lockstep(unit, 5)
    assert ReadOut not in adoptions_and_reads(unit, 0), "rank 1 has not got version 1 yet"
    if welcomed:
        unit.inbox.append(Welcomed(1, 2, 1000, seed_wanted=False, asked=0))
        in_lockstep(unit, 5)
    unit.receive(unit.ranks[1])
    in_lockstep(unit, 5)
    assert adoptions_and_reads(unit, 1) == done


# --- one rank's place in the orders -------------------------------------------------------------------------------------


def test_a_step_begins_when_all_before_it_is_done() -> None:
    cursor = Cursor()
    adopt = Adopt(0, Version(0, 1))
    assert (cursor.due(), cursor.released) == (None, False)
    for order in (Order(0, Begin()), Order(0, Release(4, 9)), Order(1, adopt), Order(1, Release(5, 9))):
        cursor.put(order)
    assert (cursor.due(), cursor.due(), cursor.released) == (Begin(), None, True)
    assert cursor.begin() == Release(4, 9)
    assert (cursor.released, cursor.due(), cursor.released) == (False, adopt, True)
    assert cursor.begin() == Release(5, 9)
    with pytest.raises(OrderError, match="local step 3 is not released"):
        cursor.begin()


def test_an_order_for_another_step_is_an_error() -> None:
    cursor = Cursor()
    cursor.put(Order(2, Begin()))
    with pytest.raises(OrderError, match="after local step 2, and this rank is at 0"):
        cursor.due()


def test_counters_begin_anew_with_a_generation() -> None:
    counts = Counts(2, 1)
    for step in range(1, 5):
        counts.stepped(0, step)
        counts.trained(2 if step < 4 else 3)
        if step == 2:
            counts.read(0, 6, 3)
            counts.began(3)
            counts.read(0, 7, 4)
        counts.stepped(1, 10)
    # Tokens of steps 1 to 4 are 11, 12, 13 and 14; the fragment was never adopted, and the generation has step 4 only. It began while step
    # 2 was counted, whose samples were dealt before; those of step 3 came after. The push of step 3 belonged to the generation before.
    assert counts.ready() == [PushCounts(0, 7, steps=4, tokens=50, samples_done=5, tokens_done=14, steps_done=1)]
    assert counts.ready() == []


def test_the_unit_says_how_far_all_ranks_are() -> None:
    counts, unit = Counts(2, 2), new_unit(2, steps=9)
    counts.adopted(1, 2)
    for step in range(1, 4):
        counts.trained(8)
        counts.stepped(0, 30, loss=3.0)
        counts.stepped(1, 10, loss=1.0)
        if step == 1:
            # Fragment 1 is adopted after step 2: there is nothing of it to send before. The loss is (30 * 3 + 10 * 1) / 40.
            assert counts.reached(unit) == replace(
                unit, step=1, fragment_steps=(1, 0), fragment_tokens=(40, 0), samples_done=8, tokens_done=40
            )
            assert counts.loss == 2.5
    counts.stepped(0, 30)
    assert counts.reached(unit) == replace(unit, step=3, fragment_steps=(3, 1), fragment_tokens=(120, 40), samples_done=24, tokens_done=120)
    assert counts.loss == 2.5


def test_a_rank_that_gives_no_loss_leaves_it_to_the_others() -> None:
    counts = Counts(2, 1)
    counts.trained(1)
    counts.stepped(0, 10, loss=2.0)
    counts.stepped(1, 10)
    assert counts.loss == 2.0


# --- numbers ------------------------------------------------------------------------------------------------------------


def test_the_leader_goes_ahead_as_far_as_an_order_needs() -> None:
    """An order takes 50 ms: of steps of 1 s one is enough, of 20 ms three are (ceil(50 / 20)), and never more than MOST_AHEAD."""
    assert [ahead(seconds) for seconds in (0.0, 1.0, 0.02, 0.0001)] == [1, 1, 3, MOST_AHEAD]


def test_the_ranks_train_the_units_batch_between_them() -> None:
    ranges = ((4, 7), (20, 24), (30, 31))
    assert [numbers_of_rank(ranges, DataRank(index, 4)).tolist() for index in range(4)] == [[4, 5], [6, 20], [21, 22], [23, 30]]
    assert numbers_of_rank((), DataRank(1, 2)).tolist() == []
    with pytest.raises(ValueError, match="8 samples cannot be dealt out to 3 ranks"):
        numbers_of_rank(ranges, DataRank(0, 3))
