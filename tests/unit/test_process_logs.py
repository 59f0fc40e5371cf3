"""A failed test shows what the processes that it started have written."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from builders.exchange import Program
from builders.process_logs import last_lines


def fail() -> None:
    raise AssertionError("as requested")


def shown_after(call: pytest.CallInfo[None], request: pytest.FixtureRequest) -> dict[str, str]:
    """The logs in the report that pytest would make of the running test after such a call."""
    report: pytest.TestReport = request.node.ihook.pytest_runtest_makereport(item=request.node, call=call)
    return {name.removeprefix("End of "): lines for name, lines in report.sections if name.startswith("End of ")}


def test_a_failure_shows_the_last_lines_of_processes_below_any_temporary_folder(
    request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shared = tmp_path_factory.mktemp("shared-plane")
    Program([sys.executable, "-c", "for line in range(1000): print('line', line)"], {}, tmp_path / "u-a1.log").wait()
    Program([sys.executable, "-c", "raise SystemExit('no licence')"], {}, shared / "etcd.log").wait()
    assert shown_after(pytest.CallInfo.from_call(fail, "call"), request) == {
        f"{tmp_path.name}/u-a1.log": "\n".join(f"line {line}" for line in range(960, 1000)),
        f"{shared.name}/etcd.log": "no licence",
    }


def test_a_test_that_passes_shows_no_logs(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    (tmp_path / "u-a1.log").write_text("line\n")
    assert not shown_after(pytest.CallInfo.from_call(lambda: None, "call"), request)


def test_logs_that_nothing_was_written_to_since_the_test_began_are_left_out(tmp_path: Path) -> None:
    for name, written in (("earlier.log", 99.0), ("this.log", 100.0)):
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, (written, written))
    (tmp_path / "empty.log").touch()
    assert dict(last_lines([tmp_path], since=100.0)) == {"this.log": "this.log"}


def test_of_many_logs_those_that_were_written_to_last_are_shown_and_the_others_named(tmp_path: Path) -> None:
    for number in range(42):
        (tmp_path / f"{number}.log").write_text("line\n")
        os.utime(tmp_path / f"{number}.log", (number, number))
    shown = dict(last_lines([tmp_path], since=0.0))
    assert shown.pop("logs that are not shown").splitlines() == [str(tmp_path / "1.log"), str(tmp_path / "0.log")]
    assert shown == {f"{number}.log": "line" for number in range(2, 42)}
