"""What a fault did: every figure from a record in which it can be counted by hand."""

from __future__ import annotations

import pytest
from builders.records import TOKENS, ARecord, a_killed_unit
from diloco_local.record.effects import effects_of, tokens_sentence
from diloco_operator.api.phases import Phase


def sentence(record: ARecord) -> str:
    (effect,) = effects_of(record.of_job())
    return effect.sentence()


def test_a_kill_is_told_by_its_return_the_others_steps_and_the_merges_meanwhile() -> None:
    # u-1 took 1.2 s where its median is 1 s; in the 4.5 s before every step took 1 s. From 10.0 to 14.5 merges came at 10.1 to 14.1: the
    # first of them, of second 10, still had the killed unit's contribution: 11 contributions in 5 merges.
    assert sentence(a_killed_unit()) == (
        "u-2 killed at step 81, back after 4.5 s; meanwhile the others' longest step took 1.20 times that of the 4.5 s before, "
        "and 5 merges had 2.2 of 3 units on average"
    )


def test_the_figures_are_there_for_programs_too() -> None:
    (effect,) = effects_of(a_killed_unit().of_job())
    assert effect.as_json() == {
        "unit": "u-2",
        "signal": "KILL",
        "step": 81,
        "backSeconds": 4.5,
        "rolledBackTo": None,
        "longestStepRatio": 1.2,
        "longestStepTimesBefore": 1.2,
        "longestStepRatioBefore": 1.0,
        "merges": {"2": 4, "3": 1},
        "units": 3,
    }


def test_survivors_that_stand_still_to_the_end_are_not_passed_over() -> None:
    """They take no step any more, so no step on record is long."""
    record = ARecord().train("u-0", "u-1").steps("u-0", [1, 2, 3, 4, 5]).steps("u-1", [1, 2, 3, 4, 5, 30])
    record.fault(5.5, "u-1").phase(5.6, "u-1", Phase.RECOVERY).merge(29.0, 9, "u-1").state(30.0, "Training")
    # u-0 did its last step at 5, and the last merge came at 29.
    assert "the others' longest step took 24.00 times" in sentence(record)


def test_a_long_step_over_the_moment_of_the_kill_counts() -> None:
    record = ARecord().train("u-0", "u-1").steps("u-0", [1, 2, 3, 4, 9, 10]).steps("u-1", [1, 2, 3, 4])
    record.fault(5.0, "u-1").phase(5.1, "u-1", Phase.RECOVERY).recovered(8.0, "u-1", 2.5).state(10.0, "Training")
    assert "the others' longest step took 5.00 times" in sentence(record)


def test_the_first_step_of_an_attempt_which_compiles_is_no_step_that_the_kill_made_long() -> None:
    record = ARecord().train("u-0", "u-1").steps("u-0", [float(at) for at in range(1, 13)]).steps("u-1", [1, 2])
    record.phase(2.0, "u-2", Phase.COMPILE).steps("u-2", [6.5, 7.5, 8.5, 9.5, 10.5])
    record.fault(2.0, "u-1").recovered(7.0, "u-1", 4.5).state(12.0, "Training")
    assert "the others' longest step took 1.00 times" in sentence(record)


def test_a_recovery_counts_as_status_says_it_from_the_second_in_which_the_container_ended() -> None:
    record = ARecord().train("u-0", "u-1").fault(5.5, "u-1").recovered(8.5, "u-1", 3.5).state(10.0, "Training")
    (effect,) = effects_of(record.of_job())
    assert effect.back == 3.5


def test_a_unit_that_does_not_come_back_is_said_not_to() -> None:
    record = ARecord().train("u-0", "u-1").steps("u-0", [1, 2, 3, 4, 5, 6]).steps("u-1", [1, 2])
    record.fault(2.5, "u-1").phase(2.6, "u-1", Phase.FAILED).merge(5.0, 5, "u-0").state(6.5, "Training")
    assert sentence(record).startswith("u-1 killed at step 81, and not back before the end; meanwhile")


def test_a_unit_that_had_not_contributed_yet_is_back_with_its_first_merge() -> None:
    record = ARecord().train("u-0").steps("u-0", [1, 2, 3, 4, 5, 6]).phase(0.0, "u-1", Phase.START)
    record.fault(2.0, "u-1").phase(4.0, "u-1", Phase.TRAINING, attempt=2).steps("u-1", [4.5, 5.5], attempt=2)
    record.merge(3.0, 3, "u-0").merge(5.0, 5, "u-0", "u-1").state(6.5, "Training")
    assert "back after 3.0 s" in sentence(record)


def test_a_stopped_unit_is_back_when_it_contributes_again_however_late_its_loss_was_noticed() -> None:
    record = ARecord().train("u-0", "u-1").steps("u-0", [float(at) for at in range(1, 30)]).steps("u-1", [1, 2, 3])
    record.fault(3.0, "u-1", "STOP").phase(13.0, "u-1", Phase.RECOVERY).recovered(23.0, "u-1", 10.0).state(29.0, "Training")
    assert sentence(record).startswith("u-1 stopped at step 81, back after 20.0 s;")


def test_a_unit_that_was_only_slowed_down_is_back_with_its_next_step() -> None:
    record = ARecord().train("u-0", "u-1").steps("u-1", [1, 2, 3, 6, 7]).steps("u-0", [1, 2, 3, 4, 5, 6, 7])
    assert "back after 2.5 s" in sentence(record.fault(3.5, "u-1", "STOP").state(8.0, "Training"))


def test_a_killed_syncer_is_told_by_the_pause_of_merges_and_the_step_it_went_back_to() -> None:
    # Nobody hears of the steps of u-0 from 5 to 9: three in 4 s, of which its first report after that tells. u-1 stands still for 4 s.
    record = ARecord().train("u-0", "u-1").steps("u-0", [1, 2, 3, 4, 5]).steps("u-0", [9, 10, 11, 12], first=8)
    record.steps("u-1", [1, 2, 3, 4, 5, 10, 11, 12])
    for t in range(1, 6):
        record.merge(t + 0.1, t, "u-0")
    record.fault(5.5, "syncer", step=5).merge(9.0, 4, "u-0", "u-1").merge(10.0, 5, "u-0").state(12.0, "Training")
    assert sentence(record) == (
        "syncer killed at step 5, merging again from step 3 after 3.5 s; meanwhile the units' longest step took 5.00 times that of the "
        "3.5 s before"
    ), "of u-1"
    record.lines = [line for line in record.lines if getattr(line, "unit", "") != "u-1"]
    assert "the units' longest step took 1.33 times" in sentence(record), "4 s for three steps"


def test_a_unit_that_is_killed_again_on_its_way_back_is_back_as_long_after_each_kill() -> None:
    record = ARecord().train("u-0").fault(10.0, "u-0").fault(14.0, "u-0").recovered(20.0, "u-0", 9.5)
    assert [effect.back for effect in effects_of(record.of_job())] == [9.5, 6.0]


@pytest.mark.parametrize(
    ("samples", "tokens", "said"),
    [
        (400, 400 * TOKENS, "tokens exact: 25,600 are 400 samples of 64, each once"),
        (399, 400 * TOKENS, "tokens NOT exact: 25,600 are counted, and 399 samples of 64 hold 25,536"),
        (400, 400 * TOKENS - 1, "tokens NOT exact: 25,599 are counted, and 400 samples of 64 hold 25,600"),
    ],
)
def test_tokens_are_compared_with_the_committed_samples(samples: int, tokens: int, said: str) -> None:
    record = ARecord().train("u-0").steps("u-0", [1, 2, 3]).figures(4.0, samples=samples, tokens=tokens)
    assert tokens_sentence(record.of_job()) == said


def test_tokens_of_uneven_samples_are_not_said_to_be_exact() -> None:
    record = ARecord().steps("u-0", [1, 2], tokens=64).steps("u-1", [1, 2], tokens=63).figures(4.0, samples=32, tokens=32 * 64)
    assert tokens_sentence(record.of_job()) == "tokens not checked: samples hold different numbers of tokens"


def test_tokens_of_programs_that_feed_themselves_are_not_said_to_be_exact() -> None:
    record = ARecord().steps("u-0", [1])
    record.lines[-1] = record.lines[-1].model_copy(update={"samples": 0})
    assert tokens_sentence(record.of_job()) == "tokens not checked: programs feed themselves, so no samples are counted"
    assert tokens_sentence(ARecord().train("u-0").of_job()) == "tokens not checked: no step is on record"
