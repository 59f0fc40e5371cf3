"""Runs parts one after the other, each as a process of its own with a time limit. A part that fails or takes too long stops no other one.

A part prints one JSON line for each result. The runner completes each line and passes it on at once. When a part ends, the runner kills
whatever the part has started: this process is the sub-reaper of all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from builders.child_processes import die_with_parent
from diloco_local.supervisor import PR_SET_CHILD_SUBREAPER, descendants, kill_until_none, prctl

from benchmarks import ROOT

LEAST_SECONDS = 5.0
"""If less time is left, no further part is started."""
RESERVE_SECONDS = 5.0
"""Seconds of the whole time that are reserved for killing the last part and writing its lines."""
LOG_BYTES = 1 << 20
"""Bytes at the end of a log that are kept."""


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    seconds: float
    """Time limit. Infinity means the time that the other parts leave."""
    command: Sequence[str]
    """Program and arguments. `--device`, `--seconds` and `--out` follow them."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Fields that stand in each line beside a result."""

    device: str
    torch: str
    jax: str
    commit: str


class Runner:
    """All parts of one run."""

    def __init__(self, device: str, machine: Machine, out: Path, seconds: float) -> None:
        """`device`: cpu or cuda. `seconds`: limit for all parts together."""
        self._device, self._machine, self._out = device, machine, out
        self._deadline = time.monotonic() + seconds - RESERVE_SECONDS
        self._results: IO[str] | None = None

    def run(self, parts: Iterable[Part]) -> list[str]:
        """Run all parts, and return the names of those that did not end well."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, _end)
        self._out.mkdir(parents=True, exist_ok=True)
        failed = []
        with (self._out / "results.jsonl").open("a", encoding="utf-8") as results:
            self._results = results
            for part in parts:
                began = time.monotonic()
                ended = self._run(part)
                if ended != "well":
                    failed.append(part.name)
                self._line(part, {"figure": "part", "value": round(time.monotonic() - began, 1), "unit": "s", "ended": ended})
        return failed

    def _run(self, part: Part) -> str:
        """Run a part, and return how it ended: "well", "failed", "limit" (killed), or "no time" (not begun)."""
        seconds = min(part.seconds, self._deadline - time.monotonic())
        if seconds < LEAST_SECONDS:
            return "no time"
        log = self._out / f"{part.name}.log"
        options = ["--device", self._device, "--seconds", f"{seconds:.0f}", "--out", str(self._out)]
        try:
            with log.open("wb") as errors:
                process = subprocess.Popen(
                    [*part.command, *options], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
                    start_new_session=True, preexec_fn=die_with_parent,
                )  # fmt: skip
            assert process.stdout is not None
            reader = threading.Thread(target=self._read, args=(part, process.stdout), daemon=True)
            reader.start()
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired:
                return "limit"
            finally:
                _kill_all()
                process.wait()
                _reap_others()
                reader.join()  # all processes that could write to its pipe are dead
        finally:
            _shorten(log)
        return "failed" if status else "well"

    def _read(self, part: Part, lines: IO[str]) -> None:
        for line in lines:
            try:
                result = json.loads(line)
                if not isinstance(result, dict):
                    raise TypeError(line)
            except (ValueError, TypeError):
                sys.stderr.write(f"{part.name}: {line}")
                continue
            self._line(part, result)

    def _line(self, part: Part, found: Mapping[str, object]) -> None:
        machine = self._machine
        whole = {
            "part": part.name, **found,
            "device": machine.device, "torch": machine.torch, "jax": machine.jax, "commit": machine.commit,
        }  # fmt: skip
        text = json.dumps(whole) + "\n"
        sys.stdout.write(text)
        sys.stdout.flush()
        assert self._results is not None
        self._results.write(text)
        self._results.flush()


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _kill_all() -> None:
    kill_until_none(lambda: [process.pid for process in descendants(os.getpid()) if process.alive])


def _reap_others() -> None:
    """Reap orphans of the part, which are children of this process now. waitpid takes any child, so Popen must have reaped its own
    before."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _shorten(log: Path) -> None:
    if log.stat().st_size > LOG_BYTES:
        with log.open("rb") as file:
            file.seek(-LOG_BYTES, os.SEEK_END)
            end = file.read()
        log.write_bytes(end)
