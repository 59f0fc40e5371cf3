"""From statuses, reports and faults to lines."""

from __future__ import annotations

from typing import Any

import pytest
from builders.reports import a_report, a_unit_report
from diloco_local.record.lines import Figures, Line, Merged, Missing, PhaseBegan, Recovered, StepTaken, UnitLeft
from diloco_local.record.recorder import Recorder
from diloco_operator.api.phases import Phase
from diloco_operator.api.reasons import UnitReason
from diloco_operator.api.status import OutsideStatus, PartStatus, ReportedUnit, Status, UnitState, UnitStatus
from diloco_operator.reconcile.units.states import phase_of
from diloco_operator.report import Entry, LocalStep, Merge, Report, UnitPhase

KEY = ("default", "lm")


class Recording:
    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.monotonic = 50.0
        self.recorder = Recorder(lambda *lines: self.lines.extend(lines), lambda: 1000.0, lambda: self.monotonic)
        self.monotonic = 100.0

    def units(self, *units: UnitStatus, state: str = "Training") -> None:
        self.recorder.status(KEY, state, Status(units=units))

    def of[T: Line](self, kind: type[T]) -> list[T]:
        return [line for line in self.lines if isinstance(line, kind)]


def a_unit(state: UnitState = UnitState.TRAINING, **fields: Any) -> UnitStatus:
    return UnitStatus(name="u-0", pool="u", state=state, **{"attempt": 1, **fields})


@pytest.mark.parametrize(
    ("unit", "phase"),
    [
        (a_unit(UnitState.PENDING, attempt=0), Phase.MISSING),
        (a_unit(UnitState.PENDING, attempt=0, slice="n-0"), Phase.START),
        (a_unit(UnitState.STARTING, slice="n-0"), Phase.START),
        (a_unit(UnitState.STARTING), Phase.MISSING),
        (a_unit(UnitState.JOINING), Phase.START),
        (a_unit(UnitState.JOINING, reason=UnitReason.FIRST_STEP), Phase.COMPILE),
        (a_unit(UnitState.JOINING, reason=UnitReason.PAUSED), Phase.PAUSE),
        (a_unit(), Phase.TRAINING),
        (a_unit(reason=UnitReason.PAUSED), Phase.PAUSE),
        (a_unit(reason=UnitReason.WAITING_FOR_QUORUM), Phase.WAITING),
        (a_unit(UnitState.BACKING_OFF), Phase.RECOVERY),
        (a_unit(UnitState.STARTING, attempt=2, restarts=1, slice="n-0"), Phase.RECOVERY),
        (a_unit(UnitState.STARTING, attempt=2, ended_attempt=1, slice="n-0"), Phase.START),
        (a_unit(UnitState.STARTING, attempt=2, steps=1, slice="n-0"), Phase.RECOVERY),
        (a_unit(UnitState.STARTING, attempt=2, restarts=1), Phase.MISSING),
        (a_unit(UnitState.JOINING, attempt=2, restarts=1, reason=UnitReason.FIRST_STEP), Phase.RECOVERY),
        (a_unit(attempt=2, ended_attempt=1), Phase.TRAINING),
        (a_unit(UnitState.DRAINING), Phase.RECONFIGURATION),
        (a_unit(UnitState.FAILED), Phase.FAILED),
        (a_unit(UnitState.PENDING, attempt=0, ended_attempt=1, reason=UnitReason.SUSPENDED), Phase.OVER),
        (a_unit(UnitState.COMPLETED), Phase.OVER),
    ],
)
def test_a_state_is_a_phase(unit: UnitStatus, phase: Phase) -> None:
    assert phase_of(unit) is phase


def test_a_phase_is_written_once_and_figures_that_change_write_none() -> None:
    recording = Recording()
    recording.units(a_unit(UnitState.STARTING, slice="n-0"))
    recording.units(a_unit(tokens_per_second=5.0))
    recording.units(a_unit(tokens_per_second=6.0))
    assert [line.phase for line in recording.of(PhaseBegan)] == [Phase.START, Phase.TRAINING]


def test_a_unit_that_has_trained_and_lost_its_connection_recovers_before_its_pod_is_known_to_have_ended() -> None:
    recording = Recording()
    for unit in (a_unit(UnitState.JOINING), a_unit(), a_unit(UnitState.JOINING), a_unit(UnitState.BACKING_OFF), a_unit(attempt=2)):
        recording.units(unit)
    phases = [Phase.START, Phase.TRAINING, Phase.RECOVERY, Phase.RECOVERY, Phase.TRAINING]
    assert [line.phase for line in recording.of(PhaseBegan)] == phases


def test_a_unit_that_is_not_desired_any_more_is_said_to_have_left() -> None:
    recording = Recording()
    recording.units(a_unit())
    recording.units()
    assert recording.lines[-1].type == "left"


@pytest.mark.parametrize(
    ("phase", "fields", "expected"),
    [
        (UnitPhase.JOINING, {}, Phase.RECOVERY),
        (UnitPhase.CONTRIBUTING, {"resting_seconds": 3.0}, Phase.WAITING),
        (UnitPhase.CONTRIBUTING, {"pause": "evaluation"}, Phase.PAUSE),
        (UnitPhase.DISCONNECTED, {}, Phase.MISSING),
        (UnitPhase.REFUSED, {}, Phase.MISSING),
        (UnitPhase.DONE, {}, Phase.OVER),
    ],
)
def test_a_unit_in_another_cluster_has_the_phases_that_its_syncer_tells(phase: UnitPhase, fields: dict[str, Any], expected: Phase) -> None:
    recording = Recording()
    recording.units(a_unit())
    for unit in (
        a_unit_report("far-0", phase=UnitPhase.JOINING),
        a_unit_report("far-0"),
        a_unit_report("far-0", steps=50),
        a_unit_report("far-0", phase=phase, **fields),
    ):
        recording.recorder.report(KEY, a_report(a_unit_report("u-0", phase=UnitPhase.JOINING), unit, at=2000.0, clock=60.0))
    phases = [(line.unit, line.phase) for line in recording.of(PhaseBegan)]
    assert phases == [("u-0", Phase.TRAINING), *(("far-0", each) for each in (Phase.START, Phase.TRAINING, expected))]


@pytest.mark.parametrize("state", ["Complete", "Failed", "Suspended"])
def test_units_in_other_clusters_have_left_once_no_syncer_runs(state: str) -> None:
    recording = Recording()
    recording.units(a_unit())
    report = a_report(a_unit_report("far-0"), at=2000.0, clock=60.0)
    recording.recorder.report(KEY, report)
    recording.units(a_unit(UnitState.COMPLETED), state=state)
    recording.recorder.report(KEY, report)
    assert [line.unit for line in recording.of(UnitLeft)] == ["far-0"]
    assert [line.unit for line in recording.of(PhaseBegan)] == ["u-0", "far-0", "u-0"]


def test_a_unit_of_a_pool_that_is_gone_gets_no_row_because_a_syncer_still_names_it() -> None:
    recording = Recording()
    recording.units(a_unit())
    recording.units()
    reported_units = (a_unit_report("u-0"), a_unit_report("old-0", phase=UnitPhase.DISCONNECTED))
    recording.recorder.report(KEY, a_report(*reported_units, at=2000.0, clock=60.0))
    assert [line.unit for line in recording.of(PhaseBegan)] == ["u-0"]


def elsewhere(*units: tuple[str, str, int], parts: bool = True) -> Status:
    """A status without units of its own. `units`: name, state and tokens of each in another cluster, or else outside."""
    reported = tuple(ReportedUnit(name=name, state=state, attempt=1, tokens=tokens) for name, state, tokens in units)
    if parts:
        return Status(parts=(PartStatus(name="tokyo", units=reported),))
    return Status(outside=tuple(OutsideStatus(**dict(unit)) for unit in reported))


@pytest.mark.parametrize("parts", [True, False])
def test_without_reports_the_phases_of_units_elsewhere_are_those_in_status(parts: bool) -> None:
    recording = Recording()
    for state, tokens in (("", 0), ("Joining", 0), ("Contributing", 0), ("Contributing", 64), ("Joining", 64), ("Disconnected", 64)):
        recording.recorder.status(KEY, "Training", elsewhere(("far-0", state, tokens), ("odd-0", "Unheard-of", 0), parts=parts))
    phases = [(line.unit, line.phase) for line in recording.of(PhaseBegan)]
    assert phases == [("far-0", each) for each in (Phase.START, Phase.TRAINING, Phase.RECOVERY, Phase.MISSING)]
    recording.recorder.status(KEY, "Training", Status())
    assert [line.unit for line in recording.of(UnitLeft)] == ["far-0"], "the part is gone"
    recording.recorder.status(KEY, "Training", elsewhere(("far-0", "Contributing", 64), parts=parts))
    recording.recorder.status(KEY, "Suspended", elsewhere(("far-0", "Contributing", 64), parts=parts))
    assert [line.unit for line in recording.of(UnitLeft)] == ["far-0", "far-0"]


def test_a_status_says_nothing_about_units_elsewhere_once_reports_come() -> None:
    """A status is older, and does not say that a unit rests."""
    recording = Recording()
    status = elsewhere(("far-0", "Contributing", 64))
    recording.recorder.status(KEY, "Training", status)
    resting = a_unit_report("far-0", resting_seconds=3.0)
    recording.recorder.report(KEY, a_report(resting, at=2000.0, clock=60.0))
    recording.recorder.status(KEY, "Training", status)
    recording.recorder.report(KEY, a_report(resting, at=2001.0, clock=61.0))
    assert [line.phase for line in recording.of(PhaseBegan)] == [Phase.TRAINING, Phase.WAITING]
    assert recording.of(UnitLeft) == []


def a_step(number: int, at: float, step: int) -> Entry:
    return Entry(number, at, LocalStep("u-0", 1, step, 0.5, 2.0, samples=8 * step, tokens=512 * step))


def reported(*entries: Entry, clock: float = 60.0, incarnation: str = "a", **fields: Any) -> Report:
    unit = a_unit_report("u-0", tokens=fields.pop("unit_tokens", 0))
    return a_report(unit, at=2000.0, clock=clock, incarnation=incarnation, entries=entries, **fields)


def test_entries_keep_their_times_whatever_a_report_takes_on_its_way() -> None:
    """The recorder began at 50 on the machine's clock, which was second 1,000 since the epoch."""
    recording = Recording()
    recording.recorder.report(KEY, reported(a_step(1, 51.5, 1)))
    recording.recorder.report(KEY, reported(a_step(2, 53.0, 2)))
    assert [line.at for line in recording.of(StepTaken)] == [1001.5, 1003.0]


def test_another_process_of_the_syncer_counts_its_entries_anew() -> None:
    recording = Recording()
    recording.recorder.report(KEY, reported(a_step(1, 50.0, 1)))
    recording.recorder.report(KEY, reported(a_step(1, 60.0, 1), incarnation="b"))
    assert [line.at for line in recording.of(StepTaken)] == [1000.0, 1010.0]
    assert recording.of(Missing) == []


@pytest.mark.parametrize(("entry", "clock"), [(1e300, 50.0), (50.0, 1e300), (-1e300, 1e300)])
def test_a_syncer_with_an_impossible_clock_harms_no_record(entry: float, clock: float) -> None:
    recording = Recording()
    recording.recorder.report(KEY, reported(a_step(1, entry, 1), clock=clock))
    assert all(0 <= line.at <= 1050 for line in recording.lines)


def test_what_another_stream_of_the_same_process_sends_again_is_written_once() -> None:
    recording = Recording()
    recording.recorder.report(KEY, reported(a_step(1, 50.0, 1), a_step(2, 51.0, 2), clock=51.0))
    recording.recorder.report(KEY, reported(a_step(1, 50.0, 1), a_step(2, 51.0, 2), a_step(3, 52.0, 3), clock=52.0))
    assert [line.step for line in recording.of(StepTaken)] == [1, 2, 3]
    assert recording.of(Missing) == []


def test_entries_that_the_syncer_had_forgotten_are_counted() -> None:
    recording = Recording()
    recording.recorder.report(KEY, reported(a_step(1, 50.0, 1), a_step(5, 54.0, 5), clock=54.0))
    assert [line.entries for line in recording.of(Missing)] == [3]


def test_a_merge_is_written_with_its_units_and_loss() -> None:
    recording = Recording()
    recording.recorder.report(KEY, reported(Entry(1, 50.0, Merge(7, 3, ("u-0", "u-1"), 2.5)), clock=50.0))
    (merged,) = recording.of(Merged)
    assert (merged.job, merged.t, merged.fragment, merged.units, merged.loss) == ("default/lm", 7, 3, ("u-0", "u-1"), 2.5)


def test_figures_are_written_when_they_change() -> None:
    recording = Recording()
    for second, tokens in enumerate([0, 0, 5]):
        recording.recorder.report(KEY, reported(clock=50.0 + second, unit_tokens=tokens))
    assert [line.at for line in recording.of(Figures)] == [1000.0, 1002.0]


def test_a_recovery_is_written_once_with_the_time_that_status_says() -> None:
    recording = Recording()
    for seconds in (None, 10.4, 10.4, 3.0):
        recording.units(a_unit(attempt=2, recover_seconds=seconds))
    assert [(line.unit, line.attempt, line.seconds) for line in recording.of(Recovered)] == [("u-0", 2, 10.4), ("u-0", 2, 3.0)]
