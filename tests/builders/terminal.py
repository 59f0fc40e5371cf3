"""A terminal into which a test types commands of the documents: one bash, with jobs in the background, Ctrl-C, and a screen.

See docs/decisions/0144-commands-of-documents.md.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

_POLL_SECONDS = 0.02
_TYPED_SECONDS = 600.0
"""How long a command may take. A limit for defects, not an expectation."""
_CLOSE_SECONDS = 180.0


class CommandRefused(Exception):
    """A command ended with another status than 0, or did not end. The message has the end of the screen."""


class Terminal:
    """One bash. What its commands and its jobs print is on one screen. When it is closed, also because the test's process died, its jobs
    get SIGTERM."""

    def __init__(self, folder: Path, cwd: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._screen = folder / "screen"
        with self._screen.open("ab") as screen:  # as this process, too, writes to it
            self._shell = subprocess.Popen(
                ["bash", "--norc", "--noprofile"],
                cwd=cwd,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=screen,
                stderr=screen,
                text=True,
            )
        self._count = 0
        self._others: set[int] = set()
        # Each job gets a process group, as in an interactive shell; and a command that Ctrl-C ends does not end the shell.
        self._send("set -m; trap : INT; trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT")

    def _send(self, line: str) -> None:
        assert self._shell.stdin is not None
        try:
            self._shell.stdin.write(f"{line}\n")
            self._shell.stdin.flush()
        except BrokenPipeError:
            raise CommandRefused(f"the shell has ended\n{self.screen()}") from None

    def screen(self, since: int = 0) -> str:
        with self._screen.open("rb") as screen:
            screen.seek(since)
            return screen.read().decode(errors="replace")

    def begin(self, command: str) -> int:
        """Type it. Returns the place on the screen from which its output stands."""
        self._count += 1
        with self._screen.open("ab") as screen:
            screen.write(f"$ {command}\n".encode())
        self._others = set(self._children())
        at = self._screen.stat().st_size
        script = self._folder / f"command-{self._count}.sh"
        script.write_text(f"{command}\n")
        status = shlex.quote(str(self._status))
        self._send(f". {shlex.quote(str(script))} </dev/null; echo $? >{status}.new; mv {status}.new {status}")
        return at

    @property
    def _status(self) -> Path:
        return self._folder / f"status-{self._count}"

    def type(self, command: str) -> str:
        """Type it, wait until it has ended with status 0, and give what the screen shows of it. Raises `CommandRefused`."""
        at = self.begin(command)
        self._wait(self._status.exists, command, "end")
        if (status := self._status.read_text().strip()) != "0":
            raise CommandRefused(f"`{command}` ended with {status}\n{self.screen(at)}")
        return self.screen(at)

    def type_until(self, command: str, text: str) -> str:
        """Type a command that does not end by itself, wait until the screen shows the text, and press Ctrl-C."""
        at = self.begin(command)
        self.wait_shown(text, at, command)
        for child in set(self._children()) - self._others:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGINT)  # leads the group of its job
        self._wait(lambda: not set(self._children()) - self._others, command, "end after Ctrl-C")
        return self.screen(at)

    def wait_shown(self, text: str, since: int = 0, command: str = "") -> None:
        self._wait(lambda: text in self.screen(since) or self._ended(command, text), command, f"show {text!r}")

    def _ended(self, command: str, text: str) -> bool:
        if command and self._status.exists() and text not in self.screen():
            raise CommandRefused(f"`{command}` ended and did not show {text!r}\n{self.screen()[-8000:]}")
        return False

    def _wait(self, holds: Callable[[], bool], command: str, what: str) -> None:
        end = time.monotonic() + _TYPED_SECONDS
        while not holds():
            if self._shell.poll() is not None:
                raise CommandRefused(f"the shell ended with {self._shell.returncode} at `{command}`\n{self.screen()[-8000:]}")
            if time.monotonic() > end:
                raise CommandRefused(f"`{command}` did not {what} within {_TYPED_SECONDS:.0f} s\n{self.screen()[-8000:]}")
            time.sleep(_POLL_SECONDS)

    def _children(self) -> Iterator[int]:
        return map(int, Path(f"/proc/{self._shell.pid}/task/{self._shell.pid}/children").read_text().split())

    def close(self) -> None:
        """End the jobs and the shell."""
        assert self._shell.stdin is not None
        children = list(self._children()) if self._shell.poll() is None else []
        with contextlib.suppress(BrokenPipeError):
            self._shell.stdin.close()
        try:
            self._shell.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
            self._shell.kill()
            self._shell.wait()


@contextlib.contextmanager
def terminal(folder: Path, cwd: Path, environment: Mapping[str, str]) -> Iterator[Terminal]:
    found = Terminal(folder, cwd, environment)
    try:
        yield found
    finally:
        found.close()
