"""A unit whose contributions are refused again and again is quarantined; a job without another unit is not stopped."""

from diloco.algorithm.guards import FORGET_AFTER
from diloco.algorithm.quarantine import CLEAN_CYCLES, REFUSALS, REFUSALS_ALONE, Quarantine

P = 4


def test_a_unit_that_is_refused_in_a_row_is_quarantined() -> None:
    quarantine = Quarantine(P)
    assert [quarantine.judged(["sick"], ["well"]) for _ in range(REFUSALS)] == [set()] * (REFUSALS - 1) + [{"sick"}]


def test_a_unit_with_a_defect_in_one_fragment_is_quarantined() -> None:
    quarantine, outcomes = Quarantine(P), []
    for _ in range(REFUSALS):
        outcomes.append(quarantine.judged(["sick"], ["well"]))
        for _ in range(P - 1):
            assert quarantine.judged([], ["sick", "well"]) == set()
    assert outcomes == [set()] * (REFUSALS - 1) + [{"sick"}]


def test_refusals_are_forgotten_after_clean_cycles() -> None:
    quarantine = Quarantine(P)
    for _ in range(4 * REFUSALS):
        assert quarantine.judged(["a"], ["well"]) == set()
        for _ in range(P * CLEAN_CYCLES):
            quarantine.judged([], ["a", "well"])


def test_the_only_unit_is_not_quarantined_before_the_guards_have_learnt_anew() -> None:
    quarantine = Quarantine(P)
    for _ in range(2 * FORGET_AFTER):
        assert quarantine.judged(["alone"], []) == set()
    assert quarantine.judged(["alone"], ["other"]) == {"alone"}


def test_units_that_are_refused_for_ever_fail_at_last() -> None:
    quarantine = Quarantine(P)
    outcomes = [quarantine.judged(["a", "b"], []) for _ in range(REFUSALS_ALONE)]
    assert outcomes == [set()] * (REFUSALS_ALONE - 1) + [{"a", "b"}]


def test_the_first_refusal_of_the_next_attempt_quarantines_it_until_it_has_proved_itself() -> None:
    quarantine = Quarantine(P)
    for _ in range(REFUSALS):
        quarantine.judged(["sick"], ["well"])
    assert quarantine.judged(["sick"], ["well"]) == {"sick"}
    for _ in range(P * CLEAN_CYCLES):
        quarantine.judged([], ["sick", "well"])
    assert quarantine.judged(["sick"], ["well"]) == set()


def test_contributions_before_a_refusal_do_not_count_towards_forgetting_it() -> None:
    """Almost enough clean ones, a refusal, and a few more: the clean cycles begin anew with each refusal."""
    quarantine = Quarantine(P)
    for n in range(REFUSALS):
        assert quarantine.judged(["sick"], ["well"]) == ({"sick"} if n == REFUSALS - 1 else set())
        for _ in range(P * CLEAN_CYCLES - 1):
            quarantine.judged([], ["sick", "well"])
