"""A record as a history: one clock for several runs, phases, steps and bytes."""

from __future__ import annotations

from builders.records import ARecord, a_killed_unit
from diloco_operator.api.phases import Phase


def test_the_pause_between_two_runs_is_cut_out() -> None:
    record = ARecord().train("u-0").ended(10.0, "Interrupted")
    record.began(1000.0, "diloco up again.yaml").train("u-0", at=1002.0).state(1005.0, "Complete").ended(1006.0)
    history, job = record.history(), record.of_job()
    # 10 s of the first run and 6 s of the second.
    assert (history.seconds, history.ending, history.command) == (16.0, "Complete", "diloco up again.yaml")
    assert (job.runs, job.last_run, job.end) == ([10.0], 10.0, 15.0)
    assert [(span.start, span.end) for span in job.units["u-0"].spans] == [(0.0, 10.0), (12.0, 16.0)]


def test_a_command_that_was_killed_has_no_ending() -> None:
    assert ARecord().ended(1.0).began(5.0).history().ending == ""


def test_a_unit_is_in_one_phase_at_a_time_and_a_share_leaves_out_what_comes_after_the_job() -> None:
    unit = a_killed_unit().phase(21.5, "u-2", Phase.OVER, attempt=2).of_job().units["u-2"]
    assert [(round(span.start, 2), round(span.end, 2), span.phase) for span in unit.spans] == [
        (0.0, 10.0, Phase.TRAINING),
        (10.0, 10.05, Phase.LOST_WORK),  # its last step ended at second 10
        (10.05, 14.0, Phase.RECOVERY),
        (14.0, 21.5, Phase.TRAINING),
        (21.5, 22.0, Phase.OVER),
    ]
    assert round(unit.share(Phase.RECOVERY), 4) == round(3.95 / 21.5, 4)


def test_steps_of_two_attempts_have_no_gap_between_them_and_reports_that_were_skipped_count() -> None:
    record = ARecord().steps("u-0", [1, 2]).steps("u-0", [9, 10], attempt=2).steps("u-0", [13], attempt=2, first=4)
    unit = record.of_job().units["u-0"]
    # The clock begins with the first line of the job, at 1. Step 3 of the second attempt was not heard of: 2 steps in 3 s.
    assert [(gap.seconds, gap.steps) for gap in unit.gaps] == [(1.0, 1), (1.0, 1), (3.0, 2)]
    assert (unit.steps, unit.first_steps) == (6, [0.0, 8.0])


def test_a_process_that_begins_again_in_the_same_attempt_begins_to_count_anew() -> None:
    unit = ARecord().steps("u-0", [1, 2]).steps("u-0", [9, 10]).of_job().units["u-0"]
    assert ([gap.seconds for gap in unit.gaps], unit.steps) == ([1.0, 1.0], 4)


def test_bytes_add_up_over_the_processes_of_the_syncer() -> None:
    record = ARecord().figures(1.0, samples=1, tokens=1, units={"u": (100, 400)}).figures(2.0, samples=1, tokens=1, units={"u": (200, 800)})
    record.figures(3.0, samples=1, tokens=1, syncer="b", units={"u": (50, 60)}).figures(
        4.0, samples=1, tokens=1, syncer="b", units={"u": (70, 90), "v": (5, 6)}
    )
    job = record.of_job()
    assert [(each.received, each.sent) for each in job.traffic] == [(100, 400), (200, 800), (250, 860), (275, 896)]


def test_a_job_that_comes_later_has_a_clock_of_its_own() -> None:
    record = ARecord().train("u-0").ended(10.0)
    later = ARecord("default/other")
    later.lines.clear()
    record.lines += later.began(20.0).train("v-0", at=21.0).state(25.0, "Complete").lines
    first, second = record.history().jobs
    assert (first.title, second.title, second.end) == ("lm", "other", 4.0)
