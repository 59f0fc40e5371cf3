"""A figure of a unit, such as `staleness`, is declared once, and goes from the wire through report and record to status, CRD, docs and
tables. None may lack it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.core import SimulatedLearner, Simulation, a_layout, a_seeded_core
from builders.core import a_job as a_job_of_the_core
from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.schema_nodes import schema_nodes
from builders.stage import Stage
from diloco.data.ledger import Ledger, UnitWork
from diloco.protocol import diloco_pb2
from diloco.syncer.reporting.loss_history import LossHistory
from diloco.syncer.reporting.reports import Facts, make_report
from diloco.syncer.reporting.unit_stats import UnitStatsTable
from diloco_cli.status_text import units_lines
from diloco_operator.api.crd import job_schema
from diloco_operator.api.status import UnitState, UnitStatus
from diloco_operator.api.unit_figures import DEFAULTS, FIGURES, KEYS, UnitFigures
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord, read_units, write_unit
from diloco_operator.report import Recovery, RecoveryPhase, UnitPhase, UnitReport
from diloco_operator.telemetry.wire_report import report_of
from pydantic.alias_generators import to_camel

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


def some_of_each() -> dict[str, Any]:
    """A value of each figure, as a report has it."""
    types = {name: dict if name == "refused" else type(getattr(diloco_pb2.UnitReport(), name)) for name in FIGURES}
    return distinct({name: each() for name, each in types.items()})


def test_the_syncer_reports_every_figure_of_a_unit_that_has_trained() -> None:
    # An answer takes 2 steps of a second, so after 20 s both units have been in a merge.
    learners = [SimulatedLearner(unit, 1.0, answer_seconds=2.0) for unit in ("a-0", "b-0")]
    core = Simulation(a_seeded_core(a_job_of_the_core(), a_layout()), learners).run(until=20).core
    ledger, unit_stats = Ledger(), UnitStatsTable()
    ledger.begin("a-0/1", "a-0")
    ledger.lease("a-0/1", 10)
    ledger.commit("a-0/1", UnitWork(4, 320, 2))
    unit = unit_stats.of("a-0")
    unit.joined(1, 0.0)
    for second in (1, 2):
        unit.progressed(second, 1.0, 2.0, 400 * second, float(second))
    unit.own_data = True
    unit.refuse("Stale", "")
    facts = Facts(b"e", 24, -1, "", False, "", "", False, False, {}, LossHistory())
    (found,) = make_report(facts, core, ledger, unit_stats, 3.0).units
    assert {name for name in FIGURES if not getattr(found, name)} == set()


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
    wire = diloco_pb2.Recovery(phase=diloco_pb2.Recovery.OVER, unit="a", why="b", bytes=3, stored=True, t=7, steps=340)
    names = [field.name for field in dataclasses.fields(Recovery) if field.name.endswith("_seconds")]
    for number, name in enumerate(names, start=4):
        setattr(wire, name, number + 0.5)
    unit = diloco_pb2.UnitReport(unit="u", state=diloco_pb2.UnitReport.CONTRIBUTING, recovery=wire)
    found = report_of(diloco_pb2.Report(units=[unit]), received_at=0.0).units["u"].recovery
    seconds = {name: number + 0.5 for number, name in enumerate(names, start=4)}
    assert found == Recovery(phase=RecoveryPhase.OVER, unit="a", why="b", stored_at=7, steps=340, bytes=3, **seconds)


def test_the_record_has_every_field_of_the_status_and_keeps_it() -> None:
    assert set(UnitStatusRecord._fields) - {"figures"} | set(FIGURES) == set(UnitStatus.model_fields)
    times: dict[str, Any] = {
        "since": 1.0,
        "ended_at": 2.0,
        "not_before": 3.0,
        "failures": (4.0, 5.0),
        "recover_seconds": 6.0,
        "paused_until": 7.0,
    }
    plain = {name: value for name, value in UnitStatusRecord("", "")._asdict().items() if name not in times and name != "state"}
    del plain["figures"]
    record = UnitStatusRecord(**{**distinct(plain), **times}, figures={KEYS[name]: value for name, value in some_of_each().items()})
    written = write_unit(record)
    assert set(written) == {to_camel(name) for name in UnitStatus.model_fields}
    assert read_units({"units": [written]}) == {record.name: record}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(UnitFigures)])
def test_a_figure_is_in_every_place(name: str) -> None:
    assert name in FIGURES, "say with Figure(...) what becomes of it"
    assert name in WIRE
    assert name in UnitStatus.model_fields
    assert f"status.units[].{KEYS[name]}" in dict(schema_nodes(job_schema()))
    table = DOCS.partition("### status.units[]")[2].partition("\n### ")[0]
    assert f"| `{KEYS[name]}`" in table


def test_status_shows_every_figure_of_the_report() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0")).train()
    reported = some_of_each()
    (unit,) = stage.states()
    stage.syncer_says(unit, 1, UnitPhase.CONTRIBUTING, **reported)
    stage.advance(60)
    stage.settle()
    assert {name: stage.unit(unit)[key] for name, key in KEYS.items()} == reported


def test_a_figure_that_says_nothing_yet_is_absent() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0")).train()
    (unit,) = stage.states()
    absent = {name for name, key in KEYS.items() if key not in DEFAULTS}
    assert absent >= {"steps_per_sync", "own_data"}
    assert not {KEYS[name] for name in absent} & set(stage.unit(unit))


def test_what_is_on_record_of_a_figure_stands_while_a_report_says_nothing_of_it() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0")).train()
    (unit,) = stage.states()
    stage.syncer_says(unit, 1, UnitPhase.CONTRIBUTING, steps_per_sync=24, own_data=True)
    stage.advance(60)
    stage.settle()
    stage.syncer_says(unit, 1, UnitPhase.CONTRIBUTING, own_data=False)
    stage.advance(60)
    stage.settle()
    assert stage.unit(unit)["stepsPerSync"] == 24
    assert not stage.unit(unit).get("ownData")


def test_the_wide_table_has_a_column_for_each_figure_with_a_heading() -> None:
    values = some_of_each()
    lines = units_lines([UnitStatus(name="u-0", pool="u", state=UnitState.TRAINING, **values)], now=0.0, wide=True)
    header, row = (re.split(r"\s{2,}", line) for line in lines)
    assert {figure.heading for figure in FIGURES.values()} - {""} <= set(header)
    assert dict(zip(header, row, strict=False))["STEPS/SYNC"] == str(values["steps_per_sync"])
