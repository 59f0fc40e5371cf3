"""What one step boundary does, as a function of the counters and of what came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from diloco.contract import Exit
from diloco.learner.inbox import Finished, InboxEvent, Leased, PullWanted, Received, RefusedForGood, RestWanted, Welcomed
from diloco.learner.store import Ready
from diloco.learner.timetable import Pace, Timetable, timetable
from diloco.learner.unit_plan import Adoption, Read, ReadAhead, UnitPlan, UnitState, WorkChange, new_unit, plan_boundary
from hypothesis import given
from hypothesis import strategies as st

SIZES = [10, 20, 30]
FRAGMENTS = range(len(SIZES))
NOTHING = UnitPlan(step=0, ahead=None)
"""At a boundary without a step before it."""
TABLE = Timetable(tuple(SIZES), offsets=(0, 2, 4), interval=6, overlap=1)


def received(fragment: int, t: int) -> Received:
    return Received(fragment, t, Ready((), ()))


def welcomed(generation: int, t: int = 4, *, seed: bool = False, asked: int = 0) -> Welcomed:
    return Welcomed(generation, t, 100, seed, asked)


def pull(fragment: int, t: int, generation: int = 1) -> PullWanted:
    return PullWanted(generation, fragment, t)


def boundary(state: UnitState, *events: InboxEvent, most: int = 1000) -> tuple[UnitPlan, UnitState]:
    return plan_boundary(state, events, TABLE, most)


def trained(steps: int = 3) -> UnitState:
    """A unit of generation 1 that has adopted everything at outer step 4, and has trained `steps` batches of 2 samples and 8 tokens."""
    _, state = boundary(new_unit(len(SIZES), 100), welcomed(1), *(received(index, 4) for index in FRAGMENTS))
    for _ in range(steps):
        state = state.take_batch(2).count(8)
    return state


# --- joining ------------------------------------------------------------------------------------------------------------


def test_all_fragments_that_the_model_lacks_are_adopted_at_once_however_large() -> None:
    plan, state = boundary(new_unit(3, 100), welcomed(1, t=9), received(1, 9), received(0, 7), most=1)
    assert (plan.adoptions, state.missing) == ((Adoption(1, 9), Adoption(0, 7)), frozenset({2}))
    plan, state = boundary(state, received(2, 8), most=1)
    assert (plan.adoptions, state.missing, state.t) == ((Adoption(2, 8),), frozenset(), 9)


def test_a_unit_that_seeds_lacks_nothing() -> None:
    plan, state = boundary(new_unit(3, 100), welcomed(1, t=0, seed=True))
    assert (plan.seed, plan.adoptions, state.missing) == (True, (), frozenset())
    assert not boundary(state)[0].seed, "once"


def test_a_pull_and_a_seed_wait_while_the_program_is_in_a_step_and_adoptions_do_not() -> None:
    came: list[InboxEvent] = [pull(0, 9), received(1, 8), welcomed(2, seed=True), pull(2, 10, generation=2)]
    plan, state = plan_boundary(trained(), came, TABLE, 1000, readable=False)
    assert (plan.reads, plan.adoptions, plan.seed) == ((), (Adoption(1, 8),), False)
    plan, state = boundary(state.take_batch(2).count(8))
    assert (plan.reads, plan.adoptions, plan.seed) == ((Read(2, 10, 1, 8),), (), True)
    assert not boundary(state)[0].seed, "once"


def test_a_seed_that_is_not_wanted_any_more_is_not_sent() -> None:
    for news in (welcomed(2), welcomed(3), Finished(11)):
        _, state = plan_boundary(trained(), [welcomed(2, seed=True)], TABLE, 1000, readable=False)
        assert not boundary(state, news)[0].seed


def test_what_a_unit_adopts_beside_its_seed_is_version_0_like_the_rest_of_it() -> None:
    _, state = boundary(new_unit(3, 100), received(1, 9), welcomed(1, t=0, seed=True))
    assert state.versions == (0, 0, 0)


# --- counting -----------------------------------------------------------------------------------------------------------


def test_a_step_settles_the_oldest_batches_in_hand() -> None:
    state = trained(1).take_batch(3).take_batch(5).take_batch(7).count(16, batches=2)
    assert (state.samples_done, state.tokens_done, state.steps_done) == (2 + 3 + 5, 8 + 16, 2)
    assert state.in_hand == ((1, 7),)
    assert state.count(8, batches=0).samples_done == 10, "a step in the middle of a shard"
    assert state.count(8).samples_done == state.count(8).count(8).samples_done == 17, "a step without a batch counts none"


def test_of_batches_fetched_ahead_only_those_of_this_generation_count() -> None:
    _, state = boundary(trained(1).take_batch(3).take_batch(5), welcomed(2))
    state = state.take_batch(7).take_batch(11)
    assert state.count(8, batches=3).samples_done == 7
    assert state.count(8).count(8).count(8).samples_done == 7


def test_a_batch_in_hand_outlives_a_welcome_that_resumes() -> None:
    _, state = boundary(trained(3).take_batch(2), welcomed(1))
    assert state.count(8).samples_done == 8


def test_a_new_generation_begins_at_zero_and_keeps_the_steps_of_the_process() -> None:
    plan, state = boundary(trained(3), welcomed(2, t=1))
    assert (state.samples_done, state.generation, state.t, state.step, plan.step) == (0, 2, 1, 3, 3)


# --- pulls --------------------------------------------------------------------------------------------------------------


def test_a_pull_is_answered_with_the_counters_of_its_fragment() -> None:
    _, state = boundary(trained(2), received(1, 6))
    plan, state = boundary(state.count(8), pull(1, 7), pull(0, 8))
    assert plan.reads == (Read(1, 7, steps=1, tokens=8), Read(0, 8, steps=3, tokens=24))
    assert boundary(state)[0] == replace(NOTHING, step=3)


def test_a_fragment_that_was_just_adopted_is_read_after_the_next_step() -> None:
    plan, state = boundary(trained(), received(0, 6), pull(0, 7))
    assert (plan.reads, plan.adoptions) == ((), (Adoption(0, 6),))
    assert not boundary(state)[0].reads, "a boundary without a step in between, as while it waits for work"
    assert boundary(state.count(8))[0].reads == (Read(0, 7, steps=1, tokens=8),)


def test_of_several_pulls_of_a_fragment_the_newest_is_answered() -> None:
    plan, _ = boundary(trained(), pull(0, 5), pull(1, 6), pull(0, 7))
    assert [(read.fragment, read.t) for read in plan.reads] == [(1, 6), (0, 7)]


def test_a_pull_is_dropped_when_its_exchange_is_over() -> None:
    plan, state = boundary(trained(), pull(0, 5), received(0, 5))
    assert (plan.reads, plan.adoptions) == ((), (Adoption(0, 5),))
    assert not boundary(state.count(8))[0].reads


def test_pulls_of_another_generation_are_dropped() -> None:
    plan, state = boundary(trained(), pull(0, 5), welcomed(2), pull(1, 6, generation=1))
    assert not plan.reads
    assert not boundary(state.count(8))[0].reads
    assert boundary(state.count(8), pull(1, 7, generation=2))[0].reads == (Read(1, 7, steps=1, tokens=8),)


def test_values_are_read_before_they_are_overwritten() -> None:
    # The base of the pull is the version before; what arrives belongs to an older exchange.
    plan, _ = boundary(trained(), pull(0, 7), received(0, 6))
    assert (plan.reads, plan.adoptions) == ((Read(0, 7, steps=3, tokens=24),), (Adoption(0, 6),))


# --- reads ahead --------------------------------------------------------------------------------------------------------

SIX = timetable([10] * 6, interval=6, overlap=1)
"""Fragment p is exchanged at the outer steps t with t mod 6 == p. Half of the model is 30."""


def slow(steps: int = 3, versions: int = 94) -> UnitState:
    """A unit of SIX that has adopted everything at `versions`, with 4 outer steps in each of its steps: it is after `steps`, at 96."""
    events: list[InboxEvent] = [welcomed(1, t=versions), *(received(index, versions) for index in range(6))]
    _, state = plan_boundary(replace(new_unit(6, 1000), pace=Pace(0, 0, (4.0, 4.0))), events, SIX, 1000)
    for _ in range(steps):
        state = state.take_batch(2).count(8)
    return replace(state, pace=Pace(96, steps, (4.0, 4.0)))


def ahead(state: UnitState, *events: InboxEvent, most: int = 1000) -> tuple[list[tuple[int, int]] | None, UnitState]:
    """(fragment, outer step) of what the boundary reads ahead."""
    plan, state = plan_boundary(state, events, SIX, most)
    return (None if plan.ahead is None else [(one.read.fragment, one.read.t) for one in plan.ahead]), state


def test_what_will_be_pulled_too_early_in_the_next_step_is_read_ahead_with_the_counters_of_now() -> None:
    # 97 to 100 are taken in the next step. The boundary after it comes early enough for 99 and 100.
    plan, _ = plan_boundary(slow(), [], SIX, 1000)
    assert plan.ahead == (ReadAhead(Read(1, 97, steps=3, tokens=24), 94), ReadAhead(Read(2, 98, steps=3, tokens=24), 94))


def test_a_boundary_without_a_step_before_it_keeps_what_is_kept() -> None:
    found, state = ahead(slow())
    assert found == [(1, 97), (2, 98)]
    assert ahead(state, received(4, 97))[0] is None
    assert ahead(state.count(8))[0] == [(1, 97), (2, 98)], "staged anew, with one more step"


def test_a_pull_that_was_answered_from_what_was_staged_is_not_read_again() -> None:
    _, state = ahead(slow())
    plan, state = plan_boundary(state.count(8), [replace(pull(1, 97), answered=True), pull(2, 98)], SIX, 1000)
    assert plan.reads == (Read(2, 98, steps=4, tokens=32),)
    assert plan.ahead is not None
    assert [one.read.t for one in plan.ahead][:1] == [99]


def test_an_answered_pull_replaces_an_older_one_that_waits() -> None:
    _, state = plan_boundary(slow(), [pull(1, 91), received(5, 93)], SIX, 0)
    assert state.waiting
    plan, _ = plan_boundary(state.count(8), [replace(pull(1, 97), answered=True)], SIX, 1000)
    assert not plan.reads


def test_a_fragment_that_was_just_adopted_or_waits_for_it_is_not_read_ahead() -> None:
    assert ahead(slow(), received(1, 95))[0] == [(2, 98)]
    # The boundary has room for one fragment: 2 waits for its adoption.
    found, _ = ahead(slow(), received(1, 95), received(2, 95), most=10)
    assert found == []


def test_what_waits_behind_a_large_fragment_is_not_read_ahead_although_there_is_room_for_it() -> None:
    # The boundary moves 25 elements: 10 of fragment 5, no more of fragment 3, which has 30, and so not fragment 1 behind it.
    table = replace(SIX, sizes=(10, 10, 10, 30, 10, 10))
    for waits in (received(1, 95), pull(1, 95)):
        plan, state = plan_boundary(slow(), [received(5, 95), received(3, 95), waits], table, 25)
        assert [move.fragment for move in state.waiting] == [3, 1]
        assert plan.ahead is not None
        assert [(one.read.fragment, one.read.t) for one in plan.ahead] == [(2, 98)]


def test_no_more_than_half_of_the_model_is_kept_ahead_and_the_next_pull_comes_first() -> None:
    state = replace(slow(), pace=Pace(96, 3, (9.0, 9.0)))
    assert ahead(state)[0] == [(1, 97), (2, 98), (3, 99)]


def test_reads_ahead_take_what_pulls_and_adoptions_leave_of_a_boundary() -> None:
    assert ahead(slow(), pull(5, 95), most=20)[0] == [(1, 97)]
    assert ahead(slow(), pull(5, 95), most=10)[0] == []
    assert ahead(slow(), most=5)[0] == [(1, 97)], "one fragment always"


def test_a_unit_that_answers_at_its_boundaries_alone_reads_nothing_ahead() -> None:
    plan, _ = plan_boundary(slow(), [], TABLE, 1000, reads_ahead=False)
    assert plan.ahead is None


def test_nothing_is_read_ahead_beyond_the_last_outer_step() -> None:
    assert ahead(replace(slow(), steps=97))[0] == [(1, 97)]
    assert ahead(slow(), Finished(97))[0] == []


def test_a_new_generation_begins_without_anything_ahead_and_keeps_its_pace() -> None:
    found, state = ahead(slow(), welcomed(2, t=60))
    assert found == []
    assert ahead(state.count(8))[0] == [(1, 61), (2, 62)]


# --- adoptions ----------------------------------------------------------------------------------------------------------


def test_the_newest_is_the_one_that_came_last_also_from_a_syncer_that_went_back() -> None:
    plan, state = boundary(trained(), received(0, 9), welcomed(2, t=2), received(0, 2))
    assert (plan.adoptions, state.t) == ((Adoption(0, 2),), 2)


def test_what_does_not_fit_into_a_boundary_waits_in_the_order_of_arrival() -> None:
    plan, state = boundary(trained(), received(2, 5), pull(0, 6), received(1, 7), most=40)
    assert ([x.fragment for x in plan.adoptions], [x.fragment for x in plan.reads]) == ([2], [0])
    assert state.fragment_steps == (3, 3, 0)
    plan, state = boundary(state.count(8), pull(2, 8), most=40)
    assert (plan.adoptions, plan.reads) == ((Adoption(1, 7),), ())
    assert boundary(state, most=40)[0].reads == (Read(2, 8, steps=1, tokens=8),)


def test_a_version_that_waits_is_replaced_by_a_newer_one_and_keeps_its_turn() -> None:
    _, state = boundary(trained(), received(0, 5), received(1, 6), received(2, 7), most=10)
    plan, _ = boundary(state, received(1, 9), most=20)
    assert plan.adoptions == (Adoption(1, 9),)


# --- work, the end ------------------------------------------------------------------------------------------------------


def test_a_new_generation_forgets_the_leases_before_it_and_not_those_after() -> None:
    plan, _ = boundary(trained(), Leased(0, 4), welcomed(2, asked=64), Leased(8, 9))
    assert plan.work == WorkChange(restart=True, asked=64, leases=((8, 9),))


def test_a_welcome_that_resumes_keeps_leases_and_asks_again() -> None:
    plan, _ = boundary(trained(), Leased(0, 4), welcomed(1), Leased(8, 9))
    assert plan.work == WorkChange(asked=0, leases=((0, 4), (8, 9)))


def test_a_unit_that_rests_takes_no_work_answers_pulls_and_repeats_how_far_it_is() -> None:
    plan, state = boundary(trained(), RestWanted(2))
    assert (plan.work, plan.repeat_progress, state.quorum) == (WorkChange(quorum=2), False, 2)
    plan, state = boundary(state, pull(0, 5), received(1, 6))
    assert (plan.work, plan.repeat_progress) == (WorkChange(quorum=2), True)
    assert ([x.fragment for x in plan.reads], [x.fragment for x in plan.adoptions]) == ([0], [1])
    plan, state = boundary(state, RestWanted(0))
    assert (plan.work, plan.repeat_progress, state.quorum) == (WorkChange(), False, 0)


def test_a_welcome_and_the_end_of_the_job_end_a_rest() -> None:
    _, resting = boundary(trained(), RestWanted(2))
    for generation in (1, 2):
        plan, state = boundary(resting, welcomed(generation))
        assert (plan.work.quorum, plan.repeat_progress, state.quorum) == (0, False, 0)
    assert not boundary(boundary(resting, Finished(10))[1])[0].repeat_progress


def test_at_the_end_nothing_but_the_final_parameters_is_taken_and_once() -> None:
    plan, state = boundary(trained(), received(0, 9), pull(1, 9), Finished(10))
    assert (plan.finish, plan.reads, plan.adoptions, state.done, state.t) == (True, (), (), True, 10)
    assert boundary(state)[0] == replace(NOTHING, step=3)


def test_a_refusal_is_handed_on() -> None:
    refusal = RefusedForGood(Exit.REFUSED_FENCED, "says the test")
    assert boundary(trained(), pull(0, 5), refusal)[0].refused == refusal


# --- any order of events ------------------------------------------------------------------------------------------------

versions = st.integers(0, 20)
fragments = st.sampled_from(FRAGMENTS)
events = st.one_of(
    st.builds(received, fragments, versions),
    st.builds(pull, fragments, versions, st.integers(1, 3)),
    st.builds(welcomed, st.integers(1, 3), versions, seed=st.booleans(), asked=st.integers(0, 9)),
    st.builds(lambda start, length: Leased(start, start + length), st.integers(0, 99), st.integers(1, 9)),
    st.builds(RestWanted, st.integers(0, 3)),
)
boundaries = st.lists(st.tuples(st.booleans(), st.lists(events, max_size=6)), max_size=12)


def run(story: Sequence[tuple[bool, Sequence[InboxEvent]]], most: int) -> list[tuple[UnitState, UnitPlan, UnitState]]:
    """(before, plan, after) of each boundary; some follow a step."""
    state, lived = new_unit(len(SIZES), 100), []
    for stepped, came in story:
        before = state.take_batch(2).count(8) if stepped else state
        plan, state = plan_boundary(before, came, TABLE, most)
        lived.append((before, plan, state))
    return lived


@pytest.mark.slow
@given(boundaries, st.sampled_from([1, 25, 1000]))
def test_a_boundary_moves_no_more_than_it_may(story: list[tuple[bool, list[InboxEvent]]], most: int) -> None:
    for before, plan, _ in run(story, most):
        moves: list[Read | Adoption] = [*plan.reads, *plan.adoptions]
        assert before.missing or len(moves) <= 1 or sum(SIZES[move.fragment] for move in moves) <= most


@given(boundaries, st.sampled_from([1, 25, 1000]), st.lists(st.integers(0, 9), min_size=2, max_size=5))
def test_what_is_read_ahead_was_trained_from_the_version_adopted_last_and_is_for_an_exchange_to_come(
    story: list[tuple[bool, list[InboxEvent]]], most: int, counts: list[int]
) -> None:
    state, adopted = replace(new_unit(len(SIZES), 100), pace=Pace(counts=tuple(map(float, counts)))), [-1] * len(SIZES)
    for stepped, came in story:
        state = state.take_batch(2).count(8) if stepped else state
        plan, state = plan_boundary(state, came, TABLE, most)
        for adoption in plan.adoptions:
            adopted[adoption.fragment] = adoption.version
        if plan.seed:
            adopted = [0] * len(SIZES)
        for one in plan.ahead or ():
            read = one.read
            assert one.version == adopted[read.fragment]
            assert (read.steps, read.tokens) == (state.fragment_steps[read.fragment], state.fragment_tokens[read.fragment])
            assert read.steps > 0
            assert read.t > state.pace.t
            assert read.t % TABLE.interval == TABLE.offsets[read.fragment]
            assert read.fragment not in {waiting.fragment for waiting in state.waiting}
        sizes = [SIZES[one.read.fragment] for one in plan.ahead or ()]
        assert len(sizes) <= 1 or sum(sizes) <= min(most, sum(SIZES) // 2)


@given(boundaries, st.sampled_from([1, 25, 1000]))
def test_what_was_read_was_trained_and_belongs_to_the_present_generation(story: list[tuple[bool, list[InboxEvent]]], most: int) -> None:
    asked: set[tuple[int, int, int]] = set()
    for (_, came), (_, plan, after) in zip(story, run(story, most), strict=True):
        asked |= {(event.generation, event.fragment, event.t) for event in came if isinstance(event, PullWanted)}
        assert all(0 < read.steps <= after.steps_done for read in plan.reads)
        assert {(after.generation, read.fragment, read.t) for read in plan.reads} <= asked


@pytest.mark.slow
@given(boundaries, st.sampled_from([1, 25, 1000]))
def test_every_fragment_ends_with_the_version_that_came_last(story: list[tuple[bool, list[InboxEvent]]], most: int) -> None:
    last = {event.fragment: event.t for _, came in story for event in came if isinstance(event, Received)}
    # Boundaries without further events: one for each fragment that may wait.
    lived = run([*story, *((False, []) for _ in SIZES)], most)
    adopted = {adoption.fragment: adoption.version for _, plan, _ in lived for adoption in plan.adoptions}
    assert adopted == last
    assert not any(isinstance(waiting, Adoption) for waiting in lived[-1][2].waiting)


@given(boundaries, st.sampled_from([1, 25, 1000]))
def test_nothing_waits_without_end(story: list[tuple[bool, list[InboxEvent]]], most: int) -> None:
    lived = run([*story, *((True, []) for _ in range(2 * len(SIZES)))], most)
    assert not lived[-1][2].waiting
    assert all(len(after.waiting) <= 2 * len(SIZES) for _, _, after in lived)


@given(boundaries)
def test_counters_count_the_steps_since_the_generation_and_the_adoption_began(story: list[tuple[bool, list[InboxEvent]]]) -> None:
    generation, done, since = 0, 0, [0] * len(SIZES)
    for (stepped, came), (_, plan, after) in zip(story, run(story, 1000), strict=True):
        done += stepped
        since = [steps + stepped for steps in since]
        for event in came:
            if isinstance(event, Welcomed) and event.generation != generation:
                generation, done, since = event.generation, 0, [0] * len(SIZES)
        for adoption in plan.adoptions:
            since[adoption.fragment] = 0
        assert (after.generation, after.steps_done, after.tokens_done) == (generation, done, 8 * done)
        assert list(after.fragment_steps) == since
        assert list(after.fragment_tokens) == [8 * steps for steps in since]
