from __future__ import annotations

import math

import pytest
from diloco.contract import ENDED_BY_TOKENS, MOST_HELD_OUT_POINTS, MOST_LOSS_POINTS
from diloco.protocol import diloco_pb2 as pb
from diloco.syncer.streams.service import MOST_PART_STATE
from diloco_operator.api.goodput import MAX_KINDS, MOST_HOURS
from diloco_operator.api.rules import MAX_PART_UNITS
from diloco_operator.kube.fields import MOST, MOST_COUNT
from diloco_operator.report import Entry, Merge, PartState, Report, UnitPhase
from diloco_operator.telemetry.wire_report import UnreadableReport, part_state_on_wire, report_of


def test_the_longest_state_that_a_part_can_have_is_no_more_than_a_syncer_takes() -> None:
    hours = {f"{number:063}".replace("0", "k"): MOST_HOURS for number in range(MAX_KINDS)}
    attempts = {f"{number:063}": MOST for number in range(MAX_PART_UNITS)}
    longest = PartState.of("s" * 1000, "\U0001f600" * 1000, 1.0, hours, attempts)
    assert (len(longest.accelerator_hours), longest.attempts) == (MAX_KINDS, attempts)
    assert part_state_on_wire(longest).ByteSize() <= MOST_PART_STATE


def test_more_entries_than_a_report_can_have_are_refused() -> None:
    with pytest.raises(UnreadableReport, match="more than 4096 entries at once"):
        report_of(pb.Report(entries=[pb.Entry()] * 4097), 0)
    with pytest.raises(UnreadableReport, match="more than 2 units in a merge"):
        report_of(pb.Report(entries=[pb.Entry(merge=pb.Merge(units=["a", "b", "c"]))]), 0, most_units=2)


def test_every_field_of_the_wire_arrives() -> None:
    unit = pb.UnitReport(unit="h100-1", state=pb.UnitReport.REFUSED)
    told = pb.PartState(state="Queued", productive_share=0.5, attempts={"far-0": 3})
    wire = pb.Report(
        t=1, steps=2, tokens=3, tokens_per_second=4, held_out_loss=5, step_seconds=6, seeded=True, done=True, snapshot_t=-1,
        snapshot="snapshots/s-1", snapshot_copied=True, snapshot_error="disk full", message="older snapshot", units=[unit], draining=True,
        losses=[pb.LossPoint(t=1, loss=5.5)], held_out_losses=[pb.LossPoint(t=2, loss=4.5)], token_budget=7,
        ending=pb.Ending(cause=pb.Ending.TOKENS, t=8), contributions=9, work_refused=10, samples=11, clock=12.5, incarnation=b"\x0d",
        cosine=0.125, parameters=13, links=[pb.Link(cluster="tokyo", received_bytes_per_second=18, sent_bytes_per_second=19)],
        parts=[pb.PartReport(part="osaka", seconds_since_told=2, state=told)],
        entries=[pb.Entry(number=14, at=12.25, merge=pb.Merge(t=15, fragment=16, units=["u"], loss=17))],
    )  # fmt: skip
    plain = report_of(wire, received_at=42, pod_uid="pod-1")
    read = {field: getattr(plain, field) for field in Report.__dataclass_fields__ if field not in ("units", "received_at", "loss")}
    assert read == {
        "connected_at": 0.0,
        "t": 1, "steps": 2, "tokens": 3, "tokens_per_second": 4, "held_out_loss": 5, "step_seconds": 6, "seeded": True, "done": True,
        "parameters": 13,
        "snapshot_t": -1, "snapshot": "snapshots/s-1", "snapshot_copied": True,
        "snapshot_error": "disk full", "message": "older snapshot", "draining": True, "pod_uid": "pod-1",
        "losses": ((1, 5.5),), "held_out_losses": ((2, 4.5),), "token_budget": 7, "ending": (ENDED_BY_TOKENS, 8),
        "links": {"tokyo": (18, 19)},
        "parts": {"osaka": (PartState("Queued", "", 0.5, attempts={"far-0": 3}), 40.0)},
        "contributions": 9, "work_refused": 10, "samples": 11, "clock": 12.5, "incarnation": "0d", "cosine": 0.125,
        "entries": (Entry(14, 12.25, Merge(15, 16, ("u",), 17.0)),),
    }  # fmt: skip
    assert plain.loss is None
    assert plain.received_at == 42
    assert {name: unit.phase for name, unit in plain.units.items()} == {"h100-1": UnitPhase.REFUSED}  # for all else test_unit_figures.py


def test_points_that_no_loss_history_can_have_are_left_out() -> None:
    points = [(-1, 9.0), (3, 5.0), (2, 4.0), (3, 4.0), (4, math.nan), (5, math.inf), (6, 3.0)]
    wire = pb.Report(losses=[pb.LossPoint(t=t, loss=loss) for t, loss in points])
    assert report_of(wire, 0).losses == ((3, 5.0), (6, 3.0))
    assert report_of(wire, 0).held_out_losses == ()


@pytest.mark.parametrize("sent", [63, 64, 65, 100, 127, 128, 1000])
def test_a_loss_history_of_any_length_is_thinned_to_what_status_may_have(sent: int) -> None:
    points = [pb.LossPoint(t=t, loss=1.0) for t in range(sent)]
    found = report_of(pb.Report(losses=points, held_out_losses=points), 0)
    for curve, most in ((found.losses, MOST_LOSS_POINTS), (found.held_out_losses, MOST_HELD_OUT_POINTS)):
        assert min(sent, most) // 2 <= len(curve) <= most
        assert (curve[0].step, curve[-1].step) == (0, sent - 1)
        assert sorted(set(curve)) == list(curve)


def test_what_no_link_can_have_is_bounded_or_left_out() -> None:
    names = ["n" * 63, "n" * 64, "n" * 10**5, ""]
    report = report_of(pb.Report(links=[pb.Link(cluster=name, sent_bytes_per_second=2**64 - 1) for name in names]), received_at=0.0)
    assert report.links == {"n" * 63: (0, MOST_COUNT), "": (0, MOST_COUNT)}


def test_what_no_part_can_say_is_bounded_or_left_out() -> None:
    hours = {"tpu-v6e": 1.0, "tpu-v4": -1.0, "gb200": 1e300, "<b>": 1.0, "k" * 64: 1.0, "nan": math.nan}
    attempts = {"far-0": 2**32 - 1, "n" * 64: 1, "far-1": 0} | {f"u-{number}": 1 for number in range(100)}
    state = pb.PartState(
        state="s" * 100, message="\x1b[31m" * 10_000, productive_share=math.nan, accelerator_hours=hours, attempts=attempts
    )
    report = report_of(pb.Report(parts=[pb.PartReport(part=name, state=state) for name in ("tokyo", "n" * 64)]), received_at=5.0)
    assert list(report.parts) == ["tokyo"]
    read, told_at = report.parts["tokyo"]
    assert (len(read.state), len(read.message), read.productive_share, read.accelerator_hours) == (63, 1024, None, {"tpu-v6e": 1.0})
    assert read.message.isprintable()
    assert len(read.attempts) == MAX_PART_UNITS
    assert not read.attempts.keys() & {"far-0", "far-1", "n" * 64}
    assert told_at == 5.0


@pytest.mark.parametrize(
    ("said", "read"), [(0.0831, 0.0831), (0.0, 0.0), (-1.0, 0.0), (math.nan, 0.0), (math.inf, 0.0), (1e9, 60.0), (1e300, 0.0)]
)
def test_a_round_trip_is_a_time_of_at_most_a_minute(said: float, read: float) -> None:
    unit = pb.UnitReport(unit="u", state=pb.UnitReport.CONTRIBUTING, round_trip_seconds=said)
    assert report_of(pb.Report(units=[unit]), received_at=0.0).units["u"].round_trip_seconds == read


@pytest.mark.parametrize(("said", "read"), [(1e12, 1e12), (1.1e12, 0.0), (1e300, 0.0)])
def test_a_speed_that_no_unit_has_is_none(said: float, read: float) -> None:
    unit = pb.UnitReport(unit="u", state=pb.UnitReport.CONTRIBUTING, tokens_per_second=said)
    assert report_of(pb.Report(units=[unit]), received_at=0.0).units["u"].tokens_per_second == read


@pytest.mark.parametrize("said", [0.0, -1.0, math.nan, math.inf])
def test_a_share_of_the_merges_that_is_none_is_absent_as_from_an_older_syncer(said: float) -> None:
    unit = pb.UnitReport(unit="u", state=pb.UnitReport.CONTRIBUTING, merge_share=said)
    assert report_of(pb.Report(units=[unit]), received_at=0.0).units["u"].merge_share is None


def test_a_state_that_this_operator_does_not_know_is_an_error() -> None:
    with pytest.raises(UnreadableReport, match="state 0 of unit v5p-0"):
        report_of(pb.Report(units=[pb.UnitReport(unit="v5p-0")]), 0)
