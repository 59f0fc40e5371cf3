"""Units of several ranks as real processes in a job with a real syncer: `tests/programs/quadratic_ranks.py`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Any

from builders.exchange import PROGRAMS, Processes, Program, traced, until
from builders.ports import held_port
from diloco import contract


@dataclass
class RankUnit:
    """A unit, and its ranks once they are started."""

    processes: Processes
    name: str
    ranks: int
    attempt: int = 1
    port: int = field(default_factory=held_port)
    """Where its leader listens."""
    programs: list[Program] = field(default_factory=list)

    def start(self, **environment: str) -> RankUnit:
        """All ranks. Their traces are in `trace`."""
        usual = {
            "WORLD_SIZE": str(self.ranks),
            contract.ENV_LEADER_ADDRESS: f"127.0.0.1:{self.port}",
            "RANKS_TRACE": str(self.processes.place.directory / f"{self.name}.trace"),
        }
        place, address = self.processes.place, self.processes.address
        for rank in range(self.ranks):
            command = [sys.executable, str(PROGRAMS / "quadratic_ranks.py"), str(rank), str(self.ranks)]
            of_rank = place.of_learner(address, self.name, self.attempt, **(usual | environment))
            self.programs.append(self.processes._start(command, of_rank, f"{self.name}-a{self.attempt}-{rank}"))
        return self

    @property
    def trace(self) -> list[dict[str, Any]]:
        """What the ranks traced, in the order in which they did it."""
        return traced(self.processes.place.directory / f"{self.name}.trace")

    def of(self, rank: int) -> list[dict[str, Any]]:
        """What one rank traced."""
        return [line for line in self.trace if line["rank"] == rank]

    def first_steps(self, count: int) -> list[list[dict[str, Any]]]:
        """What each rank traced of its first local steps. The syncer may report a merge before the lines are written: this waits."""
        until(lambda: all(len(self.of(rank)) >= count for rank in range(self.ranks)), f"all ranks of {self.name} make {count} steps")
        return [self.of(rank)[:count] for rank in range(self.ranks)]

    def wait(self) -> list[int]:
        """The exit status of each rank. They start one interpreter each, on a machine that may be busy."""
        return [program.wait() for program in self.programs]

    def final(self) -> dict[str, bytes]:
        """The final values of all tensors, put together from the ranks' rows."""
        found: dict[str, list[tuple[int, bytes]]] = {}
        for program in self.programs:
            [said] = [json.loads(line) for line in program.text.splitlines() if line.startswith('{"rank"')]
            for name, (first, values) in said["rows"].items():
                found.setdefault(name, []).append((first, bytes.fromhex(values)))
        return {name: b"".join(values for _, values in sorted(rows)) for name, rows in found.items()}
