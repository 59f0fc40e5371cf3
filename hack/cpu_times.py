"""A pytest plugin that prints which tests take most processor time. Processes that a test starts and that end in it count too. It is made
for `make quick`, whose tests take at most `LIMIT`: `PYTHONPATH=hack .venv/bin/pytest -p cpu_times tests/unit -m "not slow" -q -n 2`.

See docs/decisions/0127-runs-of-tests.md.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator

import pytest

LIMIT = 0.1
"""Seconds of a core. A test of `make quick` that takes more is marked slow."""
_PROPERTY = "cpu_seconds"
_seconds: defaultdict[str, float] = defaultdict(float)


def cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _measured(item: pytest.Item) -> Generator[None]:
    begun = cpu_seconds()
    try:
        return (yield)
    finally:
        # User properties are part of the reports, which xdist carries to the process that prints.
        item.user_properties.append((_PROPERTY, cpu_seconds() - begun))


pytest_runtest_setup = pytest.hookimpl(wrapper=True, tryfirst=True)(_measured)
pytest_runtest_call = pytest.hookimpl(wrapper=True, tryfirst=True)(_measured)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        _seconds[report.nodeid] = sum(float(str(value)) for name, value in report.user_properties if name == _PROPERTY)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    slow = sorted(((taken, test) for test, taken in _seconds.items() if taken > LIMIT), reverse=True)
    terminalreporter.section(f"{len(slow)} of {len(_seconds)} tests took more than {LIMIT:g} s of a core")
    for taken, test in slow:
        terminalreporter.write_line(f"{taken:8.2f} {test}")
    every = sum(_seconds.values())
    terminalreporter.write_line(f"{every:8.2f} all tests; {every - sum(taken for taken, _ in slow):.2f} those within the limit")
