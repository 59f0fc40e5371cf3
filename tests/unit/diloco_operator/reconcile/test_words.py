"""Messages are for people: nothing that the operator decides depends on one."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
RECONCILE = ROOT / "controller" / "diloco_operator" / "reconcile"
SCENARIOS = Path(__file__).parent
_WORDS = {"message", "cause", "grantor_said", "why", "lacks", "causes"}
"""Attributes that hold words."""
_READS = {"partition", "rpartition", "split", "rsplit", "startswith", "endswith", "find", "index", "count"}
"""Methods of a string by which code could learn something from it."""
_LEFT_OUT = {"test_words", "test_event_storms", "test_status_size", "test_throughput", "test_template", "test_template_hash"}
_LEFT_OUT |= {"test_certificates", "test_pods", "test_node_ends"}
"""This file; and scenarios that take long and have few words, or none that others have not."""
_LARGE = "tests/unit/diloco_operator/reconcile/test_bad_hosts.py::test_large_job_with_a_bad_program_ends_too"
_NOWHERE = {
    "its nodes ({where}) did not become a slice",
    "'waits for its pods'",
    "'its node'",
    "'the autoscaler'",
    " says:",
    "was deleted, but not by the operator'",
    "lets its pods go to nodes in a moment",
    "Kueue has not come to it yet",
    "its Workload cannot be read",
    "its conditions contradict each other",
    "provisioning_request._WITHOUT",
    "cannot lead from",
    "'no reason'",
    "a learner of another operator, was created before",
    "no unit of another job leaves for it",
    "was replaced'",
}
"""Parts of what no scenario here leads to: races of a cluster, and what reads its objects, which other tests have."""


@pytest.mark.slow
@pytest.mark.timeout(3000)  # it runs many tests
def test_every_plan_is_the_same_with_other_words(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    chosen = sorted(str(path) for path in SCENARIOS.glob("test_*.py") if path.stem not in _LEFT_OUT)
    plugin = ["-p", "builders.scrambled_words", f"--scrambled-report={report}", "--deselect", _LARGE, "-p", "no:xdist", "-q"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, *chosen],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "tests"), *sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    found = json.loads(report.read_text())
    unused = [text for text in found["unused"].values() if not any(part in text for part in _NOWHERE)]
    assert (found["differences"][:5], unused) == ([], [])
    assert found["reconciles"] > 5000


def test_nothing_compares_messages_or_takes_them_apart() -> None:
    found = [place for path in sorted(RECONCILE.rglob("*.py")) if path.parent.name != "observe" for place in _readings(path)]
    assert found == []


def _readings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.expr):
            continue
        read: list[ast.expr] = []
        if isinstance(node, ast.Compare) and not _asks_for_none(node):
            read = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _READS:
            read = [node.func.value]
        if any(isinstance(each, ast.Attribute) and each.attr in _WORDS for each in read):
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


def _asks_for_none(node: ast.Compare) -> bool:
    return any(isinstance(each, ast.Constant) and each.value in (None, "") for each in node.comparators)
