"""The ledger of the work: nothing lost, nothing committed twice."""

import json
from typing import Any

import numpy as np
import pytest
from builders.exploration import examples
from diloco.data.ledger import Ledger, LedgerError, UnitWork, Usual, WorkLease
from diloco.data.sampling import sample_indices
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

TOKENS = 32
"""Tokens of a sample."""


def a_lease(ledger: Ledger, session: str, n: int) -> WorkLease:
    """Lease to a session named `<unit>/...`, which begins if it has not."""
    ledger.begin(session, session.partition("/")[0])
    return ledger.lease(session, n)


def test_new_numbers_are_given_in_order_and_each_once() -> None:
    ledger = Ledger()
    assert a_lease(ledger, "a/1", 10) == WorkLease(1, 0, 10)
    assert a_lease(ledger, "b/1", 5) == WorkLease(2, 10, 15)
    assert a_lease(ledger, "a/1", 10) == WorkLease(3, 15, 25)


def test_commit_takes_the_first_samples_of_the_session_across_its_leases() -> None:
    ledger = Ledger()
    a_lease(ledger, "a/1", 10)
    a_lease(ledger, "b/1", 10)
    a_lease(ledger, "a/1", 10)
    assert ledger.commit("a/1", UnitWork(14, 14 * TOKENS, 7)) == UnitWork(14, 14 * TOKENS, 7)
    assert ledger.committed() == ((0, 10), (20, 24))
    assert ledger.times_trained(8, 26) == [(8, 10, 1), (10, 20, 0), (20, 24, 1), (24, 26, 0)]


def test_commit_is_cumulative_and_may_be_repeated_or_come_late() -> None:
    ledger = Ledger()
    a_lease(ledger, "a/1", 10)
    ledger.commit("a/1", UnitWork(6, 6 * TOKENS, 3))
    assert ledger.commit("a/1", UnitWork(6, 6 * TOKENS, 3)) == UnitWork()
    assert ledger.commit("a/1", UnitWork(4, 4 * TOKENS, 2)) == UnitWork()
    assert ledger.commit("a/1", UnitWork(8, 8 * TOKENS, 4)) == UnitWork(2, 2 * TOKENS, 1)
    assert ledger.unit("a") == UnitWork(8, 8 * TOKENS, 4)


def test_what_a_dead_unit_had_not_committed_is_leased_first() -> None:
    ledger = Ledger()
    a_lease(ledger, "a/1", 10)
    a_lease(ledger, "b/1", 10)
    ledger.commit("a/1", UnitWork(4, 4 * TOKENS))
    assert ledger.release("a/1") == ((4, 10),)
    assert ledger.release("a/1") == ()
    given = [a_lease(ledger, "c/1", 4) for _ in range(3)]
    assert [(x.start, x.end) for x in given] == [(4, 8), (8, 10), (20, 24)]


def test_a_session_that_is_over_commits_and_leases_nothing_any_more() -> None:
    ledger = Ledger()
    a_lease(ledger, "a/1", 10)
    ledger.release("a/1")
    assert a_lease(ledger, "a/2", 10) == WorkLease(2, 0, 10)
    for late in (lambda: ledger.commit("a/1", UnitWork(10, 10 * TOKENS)), lambda: ledger.lease("a/1", 1), lambda: ledger.leased_to("a/1")):
        with pytest.raises(LedgerError, match="there is no session a/1"):
            late()
    assert (ledger.summary().committed, ledger.summary().frontier) == (0, 10)


def test_the_first_samples_of_a_session_that_is_over_stay_leased_while_they_may_be_committed() -> None:
    ledger = Ledger()
    a_lease(ledger, "a/1", 10)
    a_lease(ledger, "a/1", 10)
    ledger.commit("a/1", UnitWork(3, 3 * TOKENS))
    assert ledger.release("a/1", keep=12) == ((12, 20),)
    with pytest.raises(LedgerError, match="session a/1 asks for 1 sample after its end"):
        ledger.lease("a/1", 1)
    assert a_lease(ledger, "a/2", 10) == WorkLease(3, 12, 20)
    assert ledger.commit("a/1", UnitWork(5, 5 * TOKENS)) == UnitWork(2, 2 * TOKENS)
    assert ledger.release("a/1", keep=12) == ()
    assert ledger.release("a/1") == ((5, 10), (10, 12))
    assert (ledger.committed(), ledger.unit("a")) == (((0, 5),), UnitWork(5, 5 * TOKENS))


def test_a_session_without_leases_may_be_kept_after_its_end() -> None:
    ledger = Ledger()
    ledger.begin("a/1", "a")
    ledger.release("a/1", keep=0)
    assert ledger.commit("a/1", UnitWork(0, 500, 5)) == UnitWork(0, 500, 5)


def test_another_session_of_the_same_attempt_starts_from_zero() -> None:
    ledger = Ledger()
    a_lease(ledger, "a/1/first", 10)
    ledger.commit("a/1/first", UnitWork(3, 3 * TOKENS))
    ledger.release("a/1/first")
    a_lease(ledger, "a/1/second", 5)
    assert ledger.committed() == ((0, 3),)
    ledger.commit("a/1/second", UnitWork(5, 5 * TOKENS))
    assert ledger.unit("a") == UnitWork(8, 8 * TOKENS)
    assert ledger.committed() == ((0, 8),)


def test_what_is_usual_among_units_that_feed_themselves_leaves_out_those_that_have_counted_no_tokens() -> None:
    ledger = Ledger()
    for unit, tokens in (("a", 500), ("b", 700)):
        ledger.begin(f"{unit}/1", unit)
        ledger.commit(f"{unit}/1", UnitWork(0, tokens, 5))
    ledger.begin("c/1", "c")
    a_lease(ledger, "c/1", 4)
    ledger.commit("c/1", UnitWork(4, 0, 5))
    assert ledger.usual.per_step_of == {"a": 100, "b": 140}


def test_what_is_usual_comes_from_the_units_that_have_committed_enough_to_be_believed() -> None:
    ledger = Ledger()
    # (samples, tokens, steps): 64 samples are enough, 63 are not.
    for unit, work in {"a": UnitWork(64, 64 * 32, 32), "b": UnitWork(100, 100 * 30, 50), "c": UnitWork(63, 63 * 1, 63)}.items():
        a_lease(ledger, f"{unit}/1", work.samples)
        ledger.commit(f"{unit}/1", work)
    # Lower medians of two: the smaller of 30 and 32 tokens a sample, and of 60 and 64 tokens a step.
    assert ledger.usual == Usual(30.0, 60.0)


def test_unit_that_feeds_itself_still_counts_tokens() -> None:
    ledger = Ledger()
    ledger.begin("a/1", "a")
    ledger.commit("a/1", UnitWork(0, 500, 5))
    ledger.commit("a/1", UnitWork(0, 700, 7))
    assert ledger.unit("a") == UnitWork(0, 700, 7)
    assert ledger.tokens == 700


@pytest.mark.parametrize(
    ("samples", "tokens", "says"),
    [(11, 400, "11 samples done, but only 10 were leased"), (6, 159, r"6 samples with 159 tokens after 5 samples with 160.*cannot shrink")],
)
def test_impossible_commits_are_refused_and_commit_nothing(samples: int, tokens: int, says: str) -> None:
    ledger = Ledger()
    a_lease(ledger, "a/1", 10)
    ledger.commit("a/1", UnitWork(5, 160))
    with pytest.raises(LedgerError, match=says):
        ledger.commit("a/1", UnitWork(samples, tokens))
    assert ledger.committed() == ((0, 5),)
    with pytest.raises(LedgerError, match="asks for 0 samples"):
        a_lease(ledger, "a/1", 0)


def test_after_a_restore_everything_that_was_not_committed_is_free() -> None:
    ledger = Ledger()
    a_lease(ledger, "a/1", 10)
    a_lease(ledger, "b/3", 10)
    ledger.commit("a/1", UnitWork(4, 4 * TOKENS, 2))
    again = Ledger.from_json(json.loads(json.dumps(ledger.to_json())))
    summary = again.summary()
    assert (summary.frontier, summary.committed, summary.leased, summary.free, summary.tokens) == (20, 4, 0, 16, 4 * TOKENS)
    assert again.unit("a") == UnitWork(4, 4 * TOKENS, 2)
    lease = a_lease(again, "b/4", 100)
    assert (lease.id, lease.start, lease.end) == (3, 4, 20)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 9},
        {"committed": [[0, 4], [3, 6]]},
        {"committed": [[0, 99]]},
        {"committed": "x"},
        {"units": {"a": [5, 1, 1]}},
        {"units": None},
        {"frontier": None},
    ],
)
def test_malformed_or_contradictory_ledgers_are_refused(change: dict[str, Any]) -> None:
    ledger = Ledger()
    a_lease(ledger, "a/1", 10)
    ledger.commit("a/1", UnitWork(4, 4 * TOKENS))
    with pytest.raises(LedgerError, match="the ledger"):
        Ledger.from_json(ledger.to_json() | change)


def test_ledger_says_how_often_a_sample_was_trained() -> None:
    ledger, samples, seed = Ledger(), 10, 5
    a_lease(ledger, "a/1", 24)
    ledger.commit("a/1", UnitWork(24, 24))  # two epochs and four samples of a third
    [(_, _, trained)] = ledger.times_trained(0, 24)
    times = trained * np.bincount(sample_indices(np.arange(24), samples, seed))
    assert sorted(times) == [2] * 6 + [3] * 4


def test_size_does_not_grow_with_the_work() -> None:
    ledger = Ledger()
    for n in range(1, 3001):
        a_lease(ledger, "a/1", 7)
        ledger.commit("a/1", UnitWork(7 * n, 7 * n))
    assert len(json.dumps(ledger.to_json())) < 200
    assert ledger.committed() == ((0, 21_000),)


class AnyHistory(RuleBasedStateMachine):
    """Units lease, commit, die and come back, and the syncer restarts from snapshots; against plain sets."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.order: dict[str, tuple[int, list[int], int]] = {}  # unit -> (attempt, numbers leased in this session in order, done)
        self.attempts: dict[str, int] = {}
        self.trained: set[int] = set()
        self.tokens = 0
        self.saved: tuple[dict[str, Any], set[int], int] = (self.ledger.to_json(), set(), 0)

    units = st.sampled_from(["a", "b", "c"])

    @rule(unit=units, n=st.integers(1, 9))
    def lease(self, unit: str, n: int) -> None:
        attempt, numbers, done = self.order.get(unit, (self.attempts.setdefault(unit, 1), [], 0))
        lease = a_lease(self.ledger, f"{unit}/{attempt}", n)
        new = list(range(lease.start, lease.end))
        assert 1 <= len(new) <= n
        held = {x for _, other, d in self.order.values() for x in other[d:]}
        assert not held & set(new), "leased to two units"
        assert not self.trained & set(new), "leased though committed"
        self.order[unit] = (attempt, numbers + new, done)

    @precondition(lambda self: self.order)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        unit = data.draw(st.sampled_from(sorted(self.order)))
        attempt, numbers, done = self.order[unit]
        to = data.draw(st.integers(0, len(numbers)))
        self.ledger.commit(f"{unit}/{attempt}", UnitWork(to, to * TOKENS))
        if to > done:
            assert not self.trained & set(numbers[done:to]), "committed twice"
            self.trained |= set(numbers[done:to])
            self.tokens += (to - done) * TOKENS
            self.order[unit] = (attempt, numbers, to)

    @precondition(lambda self: self.order)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        unit = data.draw(st.sampled_from(sorted(self.order)))
        attempt, numbers, done = self.order.pop(unit)
        returned = self.ledger.release(f"{unit}/{attempt}")
        assert [x for a, b in returned for x in range(a, b)] == numbers[done:]
        self.attempts[unit] = attempt + 1

    @rule()
    def snapshot(self) -> None:
        self.saved = (json.loads(json.dumps(self.ledger.to_json())), set(self.trained), self.tokens)

    @rule()
    def syncer_restarts(self) -> None:
        self.ledger, self.trained, self.tokens = Ledger.from_json(self.saved[0]), set(self.saved[1]), self.saved[2]
        self.order = {}

    @invariant()
    def every_number_is_in_one_state_and_tokens_are_conserved(self) -> None:
        summary = self.ledger.summary()
        assert {x for a, b in self.ledger.committed() for x in range(a, b)} == self.trained
        assert summary.leased == sum(len(numbers) - done for _, numbers, done in self.order.values())
        assert summary.committed + summary.leased + summary.free == summary.frontier
        assert summary.tokens == self.tokens == TOKENS * summary.committed


TestAnyHistory = pytest.mark.slow(AnyHistory.TestCase)
TestAnyHistory.settings = settings(max_examples=examples(60), stateful_step_count=30)
