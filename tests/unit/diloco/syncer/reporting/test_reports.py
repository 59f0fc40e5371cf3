import pytest
from builders.core import InlineCore, SimulatedLearner, Simulation, a_job, a_layout, a_seeded_core
from builders.exchange import training
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.contract import Result
from diloco.data.ledger import Ledger, UnitWork
from diloco.syncer.reporting.loss_history import LossHistory
from diloco.syncer.reporting.reports import RESULT_BYTES, Facts, held_out_loss, ledger_text, make_report, make_result, result_json
from diloco.syncer.reporting.unit_stats import UnitStatsTable


def facts(**changes: object) -> Facts:
    usual = {
        "incarnation": b"e",
        "steps": 24,
        "snapshot_t": -1,
        "snapshot": "",
        "snapshot_copied": False,
        "snapshot_error": "",
        "message": "",
        "complete": False,
        "draining": False,
        "evaluations": {},
        "losses": LossHistory(),
    }
    return Facts(**(usual | changes))  # type: ignore[arg-type]


def core() -> InlineCore:
    return InlineCore(Layout([TensorSpec("a", (2,)), TensorSpec("b", (2,))]), training())


def test_held_out_loss_is_weighted_by_the_tokens_it_was_measured_on() -> None:
    # (1.0 * 300 + 2.0 * 100) / 400
    assert held_out_loss({"a": (1.0, 300), "b": (2.0, 100)}) == pytest.approx(1.25)
    assert held_out_loss({}) is None


def test_a_report_before_the_first_learner_says_that_nothing_is_there() -> None:
    report = make_report(facts(), None, Ledger(), UnitStatsTable(), 0.0)
    assert (report.t, report.steps, report.seeded, report.snapshot_t, list(report.units)) == (0, 24, False, -1, [])
    assert not report.HasField("loss")
    assert not report.HasField("held_out_loss")


def test_tokens_in_a_report_are_the_committed_ones() -> None:
    ledger, unit_stats = Ledger(), UnitStatsTable()
    unit_stats.of("u").joined(1, 0.0)
    unit_stats.of("u").progressed(5, 0.1, 2.0, 400, 1.0)
    ledger.begin("u/1", "u")
    ledger.lease("u/1", 10)
    ledger.commit("u/1", UnitWork(4, 320, 2))
    report = make_report(facts(), core(), ledger, unit_stats, 3.0)
    (unit,) = report.units
    assert (report.tokens, unit.tokens, unit.steps, unit.local_step, unit.seconds_since_heard) == (320, 320, 2, 5, 2.0)
    assert (report.samples, report.clock) == (4, 3.0)


def test_a_report_holds_the_losses_over_outer_steps() -> None:
    losses = LossHistory()
    losses.training.add(1, 5.5)
    losses.training.add(2, 4.5)
    losses.held_out.add(2, 4.75)
    report = make_report(facts(losses=losses), core(), Ledger(), UnitStatsTable(), 0.0)
    assert [(point.t, point.loss) for point in report.losses] == [(1, 5.5), (2, 4.5)]
    assert [(point.t, point.loss) for point in report.held_out_losses] == [(2, 4.75)]


def test_the_tokens_of_a_result_are_those_of_all_its_units() -> None:
    ledger, unit_stats, trained = Ledger(), UnitStatsTable(), {"u": 320, "v": 75, "w": 0}
    for unit, tokens in trained.items():
        unit_stats.of(unit).joined(1, 0.0)
        ledger.begin(f"{unit}/1", unit)
        ledger.commit(f"{unit}/1", UnitWork(0, tokens, 2))
    result = make_result(facts(), core(), ledger, unit_stats)
    assert {one.unit: one.tokens for one in result.units} == trained
    assert result.tokens == 320 + 75


def test_a_result_fits_into_a_termination_message_whatever_the_number_of_units() -> None:
    unit_stats = UnitStatsTable()
    for index in range(300):
        unit_stats.of(f"pool-{index:03}").joined(1, 0.0)
    text = result_json(make_result(facts(message="m" * 5000, evaluations={"u": (0.5, 10)}), core(), Ledger(), unit_stats))
    assert len(text) <= RESULT_BYTES
    result = Result.model_validate_json(text)
    assert (result.steps, result.held_out_loss) == (24, 0.5)
    assert "units are left out here" in result.message


def test_a_result_counts_what_was_refused_for_what_it_is_and_not_what_came_late() -> None:
    unit_stats = UnitStatsTable()
    for unit, reasons in {"u": ["Impossible", "Outlier", "Stale", "NotAsked"], "v": ["Outlier", "Duplicate", "FENCED"]}.items():
        for reason in reasons:
            unit_stats.of(unit).refuse(reason, f"{unit} says {reason}")
    result = make_result(facts(), core(), Ledger(), unit_stats)
    assert (result.refused, result.refusal) == (3, "2 as Outlier, such as: u says Outlier")
    assert make_result(facts(), core(), Ledger(), UnitStatsTable()).refusal == ""
    assert make_report(facts(), core(), Ledger(), unit_stats, 0.0).work_refused == 3


@pytest.mark.slow
def test_a_report_tells_outer_steps_by_all_that_they_wait_for() -> None:
    # Answers take 5.6 local steps of a second, and two exchanges go on at a time.
    learners = [SimulatedLearner(f"u{i}", 1.0, answer_seconds=5.0 + 0.3 * i) for i in range(3)]
    found = Simulation(a_seeded_core(a_job(overlap_steps=1), a_layout()), learners).run(until=300).core
    unit_stats = UnitStatsTable()
    for learner in learners:
        unit_stats.of(learner.unit).joined(1, 0.0)
    report = make_report(facts(), found, Ledger(), unit_stats, 300.0)
    assert report.step_seconds == pytest.approx(5.6 / 2, rel=0.1)
    assert report.contributions == sum(found.contributions_of(learner.unit).contributions for learner in learners) > 0


def test_the_ledger_names_only_samples_that_there_are() -> None:
    ledger = Ledger()
    assert ledger_text(ledger) == "no sample was leased"
    ledger.begin("u/1", "u")
    ledger.lease("u/1", 1)
    assert ledger_text(ledger).startswith("0 samples of sequence numbers 0 to 0 trained once each")
