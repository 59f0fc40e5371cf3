"""`diloco up` as a person runs it, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml
from builders.jobs import Obj
from builders.local_jobs import a_fleet

DILOCO = Path(sys.executable).parent / "diloco"


class Up:
    """A running `diloco up … -o json`; reads its lines as they come."""

    def __init__(self, folder: Path, jobs: list[Obj], *options: str, fleet: list[Obj] | None = None) -> None:
        (folder / "jobs.yaml").write_text(yaml.safe_dump_all(jobs))
        (folder / "fleet.yaml").write_text(yaml.safe_dump_all(fleet or a_fleet()))
        command = [str(DILOCO), "up", "jobs.yaml", "--fleet", "fleet.yaml", "--state-dir", "state"]
        self.process = subprocess.Popen(
            [*command, "-o", "json", *options], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[Obj] = []

    def read(self) -> Iterator[Obj]:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self.lines.append(json.loads(text))
            yield self.lines[-1]

    def until(self, holds: Callable[[Obj], bool]) -> Obj:
        for line in self.read():
            if holds(line):
                return line
        raise AssertionError(f"it ended with {self.process.wait()} before; its last lines: {self.lines[-5:]}; {self.errors()}")

    def end(self) -> tuple[int, Obj]:
        """Its exit status and its last line."""
        for _ in self.read():
            pass
        return self.process.wait(), self.lines[-1] if self.lines else {}

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()


def all_train(count: int) -> Callable[[Obj], bool]:
    return lambda line: line["type"] == "status" and [unit["state"] for unit in line["units"]] == ["Training"] * count
