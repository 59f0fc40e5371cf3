"""One table of reasons: what code writes is in it, and what is in it is written by code."""

from __future__ import annotations

import ast
import enum
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import diloco_operator
import pytest
from diloco_operator.api.conditions import ConditionType
from diloco_operator.api.reasons import (
    CONDITION_REASONS,
    FALSE,
    TRUE,
    UNKNOWN,
    ConditionReason,
    EventReason,
    PoolReason,
    Severity,
    UnitReason,
    all_reasons,
)
from diloco_operator.plan import Event

PACKAGE = Path(diloco_operator.__file__).parent
CONDITION_AND_EVENT: list[type[ConditionReason | EventReason]] = [*CONDITION_REASONS.values(), EventReason]
GROUPS: dict[str, type[enum.StrEnum]] = {each.__name__: each for each in (*CONDITION_AND_EVENT, UnitReason, PoolReason)}
TABLE = "api/reasons.py"
OTHERS = {
    ("api/conditions.py", "Suspended"),
    ("api/state.py", "Queued"),
    ("api/state.py", "Suspended"),
    ("reconcile/units/attempt_end.py", "NodeLost"),
}
"""Literals that are no reasons of ours: condition types, states of a job, and why a kubelet ended a pod."""


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name != TABLE and not name.startswith(("kube/", "local/")):
            yield name, ast.parse(path.read_text())


def used() -> set[tuple[str, str]]:
    """(group, member) of every reason that code outside the table names."""
    return {
        (node.value.id, node.attr)
        for _, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in GROUPS
    }


@pytest.mark.slow
def test_every_reason_in_the_table_is_used() -> None:
    table = {(name, member) for name, group in GROUPS.items() for member in group.__members__}
    assert table - used() == set()


@pytest.mark.slow
def test_no_reason_is_written_as_a_literal() -> None:
    reasons = {reason.value for reason in all_reasons()}
    literals = [
        (name, node.lineno, node.value)
        for name, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in reasons and (name, node.value) not in OTHERS
    ]
    assert literals == []


@pytest.mark.slow
def test_whatever_is_written_as_a_reason_comes_from_the_table() -> None:
    """A reason is a member of the table, "" or a variable that holds one: never another literal."""
    literals = [
        (name, node.value.lineno)
        for name, tree in sources()
        if name.startswith(("reconcile/", "placement/", "plan.py", "operator/rejected_writes.py"))
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "reason" and isinstance(node.value, ast.Constant) and node.value.value
    ]
    assert literals == []


def test_reasons_are_unique_within_their_subject_and_keep_the_form_of_kubernetes() -> None:
    rows = list(all_reasons())
    assert [row for row, count in Counter((row.subject, row.value) for row in rows).items() if count > 1] == []
    assert [row for row in rows if not re.fullmatch(r"[A-Z][A-Za-z]{2,63}", row.value) or not row.meaning.endswith(".")] == []
    assert set(CONDITION_REASONS) == set(ConditionType)
    assert {row.status for row in rows if row.subject in CONDITION_REASONS} == {TRUE, FALSE, UNKNOWN}


@pytest.mark.parametrize("reason", [reason for group in CONDITION_AND_EVENT for reason in group])
def test_the_type_of_an_event_is_the_severity_of_its_reason(reason: ConditionReason | EventReason) -> None:
    event = Event.of(reason, "text")
    assert (event.type, event.reason) == (reason.severity.value, reason.value)
    assert reason.severity in Severity
