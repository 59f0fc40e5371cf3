"""The command's side of `supervisor`: starts, signals and awaits processes that cannot outlive the command.

See docs/decisions/0050-local-pods-and-nodes.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import os
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from diloco_local import supervisor

_REQUEST_BYTES = 1 << 24


class Priority(enum.StrEnum):
    """Priority of the processes of containers, beside others of this machine when its processors are short."""

    LOW = "low"
    """A tenth of a process of the usual priority, and all of an idle processor. So a few learners do not starve the control plane, and
    the machine stays usable."""
    NORMAL = "normal"
    """That of the command."""

    @property
    def niceness(self) -> int:
        return {Priority.LOW: 10, Priority.NORMAL: 0}[self]


class UnsupportedPlatform(RuntimeError):
    """The embedded control plane cannot run on this operating system."""


class StartFailed(Exception):
    """The program could not be started: not found, not executable, no such working directory."""


@dataclass(frozen=True, slots=True)
class Exited:
    """How a process ended. `code` is the exit status as shells and kubelets report it: 128 + signal for a signal."""

    code: int
    signal: int = 0

    @classmethod
    def of_wait_status(cls, status: int) -> Exited:
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return cls(128 + number, number)
        return cls(os.WEXITSTATUS(status))


@dataclass(eq=False)
class Process:
    """A container's main process, with every process that it starts."""

    id: int
    pid: int
    mark: str
    _exited: asyncio.Future[Exited] = field(repr=False)
    _gone: asyncio.Future[None] = field(repr=False)

    @property
    def running(self) -> bool:
        return not self._exited.done()

    async def wait(self) -> Exited:
        """Wait until the main process ended."""
        return await asyncio.shield(self._exited)

    async def wait_gone(self) -> None:
        """Wait until no process that it started is alive either."""
        await asyncio.shield(self._gone)


class Supervisor:
    """One helper process, the parent of all others. It is started with the first process, and again if it was killed."""

    def __init__(self, priority: Priority = Priority.LOW) -> None:
        if sys.platform != "linux":
            raise UnsupportedPlatform(
                f"The embedded control plane needs Linux (prctl, /proc and all of 127.0.0.0/8); this is {sys.platform}. "
                "Run it in a Linux container or virtual machine, or use a cluster."
            )
        self._niceness = priority.niceness
        self._mark = secrets.token_hex(8)
        self._numbers = 0
        self._starting = asyncio.Lock()
        self._helper: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None
        self._spawning: dict[int, asyncio.Future[int]] = {}
        self._processes: dict[int, Process] = {}

    @property
    def pid(self) -> int | None:
        """Return the process number of the helper; None while there is none."""
        return self._helper.pid if self._helper and self._writer else None

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Kill every process, and return when all have gone."""
        async with self._starting:
            if self._writer is not None:
                self._writer.close()
            if self._helper is not None:
                await self._helper.wait()
            if self._listening is not None:
                await self._listening

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path) -> Process:
        """Start a program with exactly this environment; append its stdout and stderr to `log`. Raises StartFailed. If cancelled, it also
        ends what it may have started, since the caller has no handle to do so."""
        await self._start()
        self._numbers += 1
        number = self._numbers
        loop = asyncio.get_running_loop()
        process = Process(number, 0, f"{self._mark}/{number}/", loop.create_future(), loop.create_future())
        started = loop.create_future()
        self._spawning[number] = started
        self._processes[number] = process
        try:
            await self._send(
                {
                    "op": "spawn",
                    "id": number,
                    "argv": list(argv),
                    "env": dict(env),
                    "cwd": str(cwd),
                    "log": str(log),
                    "mark": process.mark,
                    "nice": self._niceness,
                }
            )
            process.pid = await started
        except asyncio.CancelledError:
            self._write({"op": "end", "id": number})
            raise
        finally:
            self._spawning.pop(number, None)
        return process

    async def signal(self, process: Process, number: int, *, group: bool = False) -> None:
        """Signal the main process, or with `group` all its processes. Does nothing if it has ended."""
        if process.running:
            await self._send({"op": "signal", "id": process.id, "signal": int(number), "group": group})

    async def end(self, process: Process) -> None:
        """Kill the whole container with SIGKILL."""
        if process.running:
            await self._send({"op": "end", "id": process.id})

    async def _send(self, request: dict[str, Any]) -> None:
        if writer := self._write(request):
            with contextlib.suppress(ConnectionError):  # `_listen` sees the same error and ends all processes
                await writer.drain()

    def _write(self, request: dict[str, Any]) -> asyncio.StreamWriter | None:
        if self._writer is not None:  # else the helper has died, and `_listen` ends all its processes
            self._writer.write(json.dumps(request).encode() + b"\n")
        return self._writer

    async def _start(self) -> None:
        async with self._starting:
            if self._writer is not None:
                return
            if self._listening is not None:
                await self._listening
            ours, theirs = socket.socketpair()
            with theirs:
                self._helper = await asyncio.create_subprocess_exec(
                    sys.executable, "-I", "-S", supervisor.__file__, str(theirs.fileno()),
                    pass_fds=[theirs.fileno()], start_new_session=True, stdin=asyncio.subprocess.DEVNULL,
                )  # fmt: skip
            reader, self._writer = await asyncio.open_connection(sock=ours, limit=_REQUEST_BYTES)
            self._listening = asyncio.create_task(self._listen(reader, self._helper), name="supervisor")

    async def _listen(self, reader: asyncio.StreamReader, helper: asyncio.subprocess.Process) -> None:
        try:
            while line := await reader.readline():
                self._on_report(json.loads(line))
        except ConnectionError:
            pass  # the same as end of file
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        await helper.wait()
        # A helper that ended by itself has killed all processes first. With one that was killed, only main processes die.
        await asyncio.to_thread(supervisor.kill_marked, f"{self._mark}/")
        for started in self._spawning.values():
            if not started.done():
                started.set_exception(StartFailed("the supervisor was killed; try again"))
        for process in [*self._processes.values()]:
            self._ended(process, Exited(137, 9))
            process._gone.set_result(None)  # noqa: SLF001 - only this class sets the results of a Process
        self._processes.clear()

    def _on_report(self, report: dict[str, Any]) -> None:
        if "started" in report:
            if waiting := self._waiting_for(report["started"]):
                waiting.set_result(report["pid"])
        elif "failed" in report:
            del self._processes[report["failed"]]
            if waiting := self._waiting_for(report["failed"]):
                waiting.set_exception(StartFailed(report["message"]))
        elif "exited" in report:
            self._ended(self._processes[report["exited"]], Exited.of_wait_status(report["status"]))
        elif "gone" in report:
            self._processes.pop(report["gone"])._gone.set_result(None)  # noqa: SLF001
        else:
            raise ValueError(f"unknown report from the supervisor: {report}")

    def _waiting_for(self, number: int) -> asyncio.Future[int] | None:
        """Return the future that `spawn` awaits; None if `spawn` was cancelled meanwhile."""
        started = self._spawning.get(number)
        return started if started is not None and not started.done() else None

    @staticmethod
    def _ended(process: Process, exited: Exited) -> None:
        if not process._exited.done():  # noqa: SLF001
            process._exited.set_result(exited)  # noqa: SLF001
