"""The command's side of `supervisor`: starts, signals and awaits processes that cannot outlive the command.

See docs/decisions/0050-local-pods-and-nodes.md.
"""

from __future__ import annotations

import asyncio
import enum
import json
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from diloco_local import supervisor

log = logging.getLogger(__name__)


class Priority(enum.StrEnum):
    """Priority of containers' processes against the other processes of this machine, when its processors are short."""

    LOW = "low"
    """A tenth of what a process of the usual priority gets, and all of an idle processor. So a few learners do not starve the control
    plane, and the machine stays usable."""
    NORMAL = "normal"
    """The same as the command has."""

    @property
    def niceness(self) -> int:
        return {Priority.LOW: 10, Priority.NORMAL: 0}[self]


class UnsupportedPlatform(RuntimeError):
    """The embedded control plane cannot run on this operating system."""


class StartFailed(Exception):
    """The program could not be started: not found, not executable, no such working directory."""


@dataclass(frozen=True, slots=True)
class Exited:
    """How a process ended."""

    code: int
    """The exit status as shells and kubelets report it: 128 + signal if a signal ended the process."""
    signal: int = 0
    """0 if the process exited by itself."""

    @classmethod
    def of_wait_status(cls, status: int) -> Exited:
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return cls(128 + number, number)
        return cls(os.WEXITSTATUS(status))


@dataclass(eq=False)
class Process:
    """A container's main process, with every process that it starts."""

    mark: str
    _exited: asyncio.Future[Exited] = field(repr=False)
    _gone: asyncio.Future[None] = field(repr=False)
    pid: int = 0
    supervisor: int = 0
    """The pid of its supervisor."""
    _writer: asyncio.StreamWriter | None = field(default=None, repr=False)

    @property
    def running(self) -> bool:
        return not self._exited.done()

    async def wait(self) -> Exited:
        """Wait until the main process has ended."""
        return await asyncio.shield(self._exited)

    async def wait_gone(self) -> None:
        """Wait until no process of the container is alive."""
        await asyncio.shield(self._gone)

    def signal(self, number: int, *, group: bool = False) -> None:
        """Signal the main process, or with `group` all its processes. Does nothing if it has ended."""
        if self.running and self._writer is not None:
            self._writer.write(bytes([int(number) | (supervisor.GROUP if group else 0)]))

    def end(self) -> None:
        """Kill the whole container with SIGKILL."""
        self.signal(signal.SIGKILL, group=True)


class Supervisor:
    """Starts containers, each with a helper process of its own as the parent of its processes."""

    def __init__(self, priority: Priority = Priority.LOW) -> None:
        if sys.platform != "linux":
            raise UnsupportedPlatform(
                f"The embedded control plane needs Linux (prctl, /proc and all of 127.0.0.0/8); this is {sys.platform}. "
                "Run it in a Linux container or virtual machine, or use a cluster."
            )
        self._niceness = priority.niceness
        self._mark = secrets.token_hex(8)
        self._numbers = 0
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Kill every process, and wait until all have gone."""
        running = [*self._running]
        for task in running:
            if not task.cancelling():  # to cancel it twice would cut its clean-up short
                task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path) -> Process:
        """Start a program with exactly this environment, and append its stdout and stderr to `log`. Raises StartFailed. If this call is
        cancelled, it ends a program that it has started, since the caller has no handle to do so."""
        self._numbers += 1
        loop = asyncio.get_running_loop()
        process = Process(f"{self._mark}/{self._numbers}/", loop.create_future(), loop.create_future())
        request = {
            "argv": list(argv), "env": dict(env), "cwd": str(cwd), "log": str(log), "mark": process.mark, "nice": self._niceness,
        }  # fmt: skip
        started: asyncio.Future[int] = loop.create_future()
        task = asyncio.create_task(_run(process, request, started), name=f"container {process.mark}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            process.pid = await started
        except asyncio.CancelledError:
            task.cancel()
            raise
        return process


async def _run(process: Process, request: Mapping[str, Any], started: asyncio.Future[int]) -> None:
    """Run a container to its end. A cancellation kills all of the container first."""
    reason = "its supervisor was killed; try again"
    try:
        await _supervised(process, request, started)
    except OSError as error:
        reason = f"its supervisor could not be started: {error}"
    finally:
        if not started.done():
            started.set_exception(StartFailed(reason))
        if process.running:
            process._exited.set_result(Exited(137, 9))  # noqa: SLF001 - only these functions begin and end a Process
        process._gone.set_result(None)  # noqa: SLF001


async def _supervised(process: Process, request: Mapping[str, Any], started: asyncio.Future[int]) -> None:
    """Start a supervisor, and wait until it and all processes of the container have ended. Raises OSError if it cannot be started."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            helper = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", supervisor.__file__, str(theirs.fileno()),
                pass_fds=[theirs.fileno()], start_new_session=True, stdin=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        reader, writer = await asyncio.open_connection(sock=ours)
    except BaseException:
        ours.close()
        raise
    process.supervisor, process._writer = helper.pid, writer  # noqa: SLF001
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        while line := await reader.readline():
            _on_report(process, json.loads(line), started)
    except ConnectionError:
        pass  # the same as end of file
    finally:
        writer.transport.abort()  # the helper sees the end of the socket and kills everything
        await helper.wait()
        # Not 0: the helper was killed before it could kill its processes (only the main one dies with it), or some outlived its kills.
        if helper.returncode and not await asyncio.to_thread(supervisor.kill_marked, process.mark):
            log.error(
                "Processes with %s=%s in their environment outlive SIGKILL: they are stuck inside the kernel, and end when they leave it.",
                supervisor.MARK, process.mark,
            )  # fmt: skip


def _on_report(process: Process, report: dict[str, Any], started: asyncio.Future[int]) -> None:
    if "exited" in report:
        process._exited.set_result(Exited.of_wait_status(report["exited"]))  # noqa: SLF001
    elif not started.done():  # else `spawn` was cancelled meanwhile
        if "started" in report:
            started.set_result(report["started"])
        else:
            started.set_exception(StartFailed(report["failed"]))
