"""What code decides by a reason is a column of the table of reasons: no other module asks which reason it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import diloco_operator
import pytest
from diloco_operator.api.consequences import Concern, Follows, Lack
from diloco_operator.api.reasons import CONDITION_REASONS, PoolReason, UnitReason, concern_of, follows, lack_of

PACKAGE = Path(diloco_operator.__file__).parent
GROUPS = {"EventReason", "PoolReason", "UnitReason", *(group.__name__ for group in CONDITION_REASONS.values())}
TABLES = {"api/reasons.py", "reconcile/units/states.py"}


@pytest.mark.slow
def test_no_module_compares_reasons_or_collects_them() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name not in TABLES:
            found += [f"{name}:{node.lineno}: {ast.unparse(node)}" for node in _readings(ast.parse(path.read_text()))]
    assert found == [], "give the reason a column in api/reasons.py, or the unit a state in reconcile/units/states.py"


def _readings(tree: ast.Module) -> Iterator[ast.expr]:
    """Comparisons with a reason, and collections of several reasons of one kind."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            if any(_groups(each) for each in (node.left, *node.comparators)):
                yield node
        elif isinstance(node, ast.Set | ast.Tuple | ast.List):
            groups = [group for each in node.elts if isinstance(each, ast.Attribute) for group in _groups(each)]
            if len(groups) > len(set(groups)):
                yield node


def _groups(node: ast.AST) -> list[str]:
    return [
        each.value.id
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id in GROUPS
    ]


def test_nothing_follows_from_a_reason_of_another_release() -> None:
    assert [follows("OfAnotherRelease", each) for each in Follows if follows("OfAnotherRelease", each)] == []
    assert (lack_of("OfAnotherRelease"), lack_of(""), concern_of("OfAnotherRelease")) == (Lack.NOTHING, Lack.NOTHING, Concern.NONE)


@pytest.mark.parametrize("what", list(Follows))
def test_each_consequence_follows_from_some_reason_and_not_from_all(what: Follows) -> None:
    reasons = [reason for reason in UnitReason if follows(reason.value, what)]
    assert 0 < len(reasons) < len(UnitReason)


@pytest.mark.parametrize("lack", list(Lack))
def test_each_lack_of_a_pool_has_a_reason(lack: Lack) -> None:
    assert any(reason.lack is lack for reason in PoolReason)


def test_each_concern_is_the_same_for_all_conditions_with_one_reason() -> None:
    """A page about a job knows the reason of its state, and not the condition that has it."""
    named = {(reason.value, reason.concern) for group in CONDITION_REASONS.values() for reason in group}
    about = [value for value, concern in named if concern is not Concern.NONE]
    assert len(about) == len(set(about))
    assert {concern for _, concern in named} == set(Concern)
