"""A figure of a unit, such as `staleness`, goes from the wire through report and record to status, CRD and docs. None may lack it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.stage import Stage
from diloco.protocol import diloco_pb2
from diloco_operator.api.crd import places
from diloco_operator.api.status import UnitStatus
from diloco_operator.reconcile.observe.unit_status import UNIT_FIGURES, UnitStatusRecord, read_units, write_unit
from diloco_operator.report import Recovery, RecoveryPhase, UnitPhase, UnitReport
from diloco_operator.telemetry import report_of
from pydantic.alias_generators import to_camel, to_snake

DOCS = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
RENAMED = {"state": "phase"}
"""Field of the wire -> field of the report, where the names differ."""
WIRE = diloco_pb2.UnitReport.DESCRIPTOR.fields_by_name


def distinct(fields: dict[str, Any]) -> dict[str, Any]:
    """A value for each field that no other field has, of the type of the given one."""
    samples: dict[type, Callable[[int], Any]] = {
        str: str,
        bool: lambda number: True,
        int: int,
        float: lambda number: number + 0.5,
        dict: lambda number: {"NonFinite": number},
    }
    return {name: samples[type(value)](number) for number, (name, value) in enumerate(fields.items(), start=1)}


def test_every_field_of_the_wire_reaches_the_report() -> None:
    assert {RENAMED.get(name, name) for name in WIRE} == {field.name for field in dataclasses.fields(UnitReport)}
    wire = diloco_pb2.UnitReport(state=diloco_pb2.UnitReport.CONTRIBUTING)
    plain = {name: dict(wire.refused) if name == "refused" else getattr(wire, name) for name in WIRE if name not in (*RENAMED, "recovery")}
    values = distinct(plain)
    for name, value in values.items():
        if isinstance(value, dict):
            getattr(wire, name).update(value)
        else:
            setattr(wire, name, value)
    report = report_of(diloco_pb2.Report(units=[wire]), received_at=0.0)
    assert dataclasses.asdict(report.units[values["unit"]]) == {**values, "phase": UnitPhase.CONTRIBUTING, "recovery": None}


def test_a_recovery_on_the_wire_reaches_the_report() -> None:
    wire = diloco_pb2.Recovery(phase=diloco_pb2.Recovery.OVER, unit="a", why="b", bytes=3)
    names = [field.name for field in dataclasses.fields(Recovery) if field.name.endswith("_seconds")]
    for number, name in enumerate(names, start=4):
        setattr(wire, name, number + 0.5)
    unit = diloco_pb2.UnitReport(unit="u", state=diloco_pb2.UnitReport.CONTRIBUTING, recovery=wire)
    found = report_of(diloco_pb2.Report(units=[unit]), received_at=0.0).units["u"].recovery
    seconds = {name: number + 0.5 for number, name in enumerate(names, start=4)}
    assert found == Recovery(phase=RecoveryPhase.OVER, unit="a", why="b", bytes=3, **seconds)


def test_the_record_has_every_field_of_the_status_and_keeps_it() -> None:
    assert set(UnitStatusRecord._fields) == set(UnitStatus.model_fields)
    times: dict[str, Any] = {
        "since": 1.0,
        "ended_at": 2.0,
        "not_before": 3.0,
        "failures": (4.0, 5.0),
        "recover_seconds": 6.0,
        "paused_until": 7.0,
        "slow_since": 8.0,
    }
    plain = {name: value for name, value in UnitStatusRecord("", "")._asdict().items() if name not in times and name != "state"}
    record = UnitStatusRecord(**{**distinct({**plain, "refused": {}}), **times})
    written = write_unit(record)
    assert set(written) == {to_camel(name) for name in UnitStatusRecord._fields}
    assert read_units({"units": [written]}) == {record.name: record}


@pytest.mark.parametrize("figure", UNIT_FIGURES)
def test_a_figure_is_in_every_place(figure: str) -> None:
    name = to_snake(figure)
    assert name in WIRE
    assert name in {field.name for field in dataclasses.fields(UnitReport)}
    assert name in UnitStatusRecord._fields
    assert f"status.units[].{figure}" in places()
    table = DOCS.partition("### status.units[]")[2].partition("\n### ")[0]
    assert f"| `{figure}`" in table


def test_status_shows_every_figure_of_the_report() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0")).train()
    reported = distinct({to_snake(figure): getattr(UnitReport("", 0, UnitPhase.DONE), to_snake(figure)) for figure in UNIT_FIGURES})
    (unit,) = stage.states()
    stage.syncer_says(unit, 1, UnitPhase.CONTRIBUTING, **reported)
    stage.advance(60)
    stage.settle()
    assert {figure: stage.unit(unit)[figure] for figure in UNIT_FIGURES} == {to_camel(name): value for name, value in reported.items()}
