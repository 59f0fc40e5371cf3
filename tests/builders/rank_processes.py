"""The ranks of a unit as real processes that meet and then do as they are told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Self

from builders.child_processes import Launcher
from builders.exchange import PROGRAMS, WAIT_TIMEOUT, Place
from builders.ports import held_port


class RankProcesses:
    """As a context it ends them all. They are `tests/programs/rank.py`."""

    def __init__(self, place: Place, ranks: int, *, gloo: bool = False, port: int = 0, ports: dict[int, int] | None = None) -> None:
        """`gloo`: they are a process group of torch, too. `port`: where the leader listens. `ports`: where ranks find it that do not
        connect directly."""
        self.port = port or held_port()
        self._launcher = Launcher()
        self._master = held_port()
        master = [str(self._master)] if gloo else []
        environment = os.environ | place.of_learner("127.0.0.1:1", "u")
        self.processes = [
            self._start(
                place.directory / f"rank{rank}", [str(rank), str(ranks), str((ports or {}).get(rank, self.port)), *master], environment
            )
            for rank in range(ranks)
        ]

    def _start(self, output: Path, arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAMS / "rank.py"), *arguments]
        with output.with_suffix(".log").open("w") as stderr:
            return self._launcher.start(
                lambda prepare: subprocess.Popen(
                    command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, preexec_fn=prepare
                )
            )

    def meet(self) -> Self:
        """Wait until all have met."""
        for rank in range(len(self.processes)):
            assert self.said(rank) == "met"
        return self

    def said(self, rank: int) -> str:
        """The next line that the rank writes."""
        return _out(self.processes[rank]).readline().strip()

    def tell(self, rank: int, what: str) -> None:
        stdin = self.processes[rank].stdin
        assert stdin is not None
        stdin.write(what + "\n")
        stdin.flush()

    def tell_all(self, what: str) -> Self:
        for rank in range(len(self.processes)):
            self.tell(rank, what)
        return self

    def signal(self, rank: int, number: int) -> None:
        self.processes[rank].send_signal(number)

    def end_of(self, rank: int) -> int:
        """Its exit status, once it has ended."""
        return self.processes[rank].wait(WAIT_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()
        self._launcher.close()


def _out(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout
