"""A program beside a control plane: a process with a log of its own. It dies with the process that started it."""

from __future__ import annotations

import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from builders.child_processes import Launcher
from builders.control_plane import RARE_COLLECTIONS, ControlPlane, ControlPlaneError

_LOG_LINES = 25


def is_ready(port: int, path: str = "/readyz") -> bool:
    """Whether a program's health endpoint says so."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


class Companion:
    """`command` runs in `folder` with PATH, HOME and `environment`, and nothing else of this process's environment."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        given = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), **RARE_COLLECTIONS, **(environment or {})}
        self._launcher = Launcher()

        def start(prepare: Callable[[], None]) -> subprocess.Popen[bytes]:
            with self.log.open("ab") as log:
                return subprocess.Popen(
                    command, cwd=folder, env=given, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=prepare
                )

        self._process = self._launcher.start(start)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def said(self) -> str:
        """Its log so far."""
        return self.log.read_text(errors="replace")

    def wait_until(self, plane: ControlPlane, holds: Callable[[], bool], what: str) -> None:
        """Raises `ControlPlaneError`, with the end of its log, if it ends meanwhile or if that takes too long."""

        def checked() -> bool:
            if (code := self._process.poll()) is not None:
                raise ControlPlaneError(f"{self.name} ended with {code}. The end of {self.log}:\n{self._last_lines()}")
            return holds()

        try:
            plane.wait_for(checked, what)
        except ControlPlaneError as error:
            raise ControlPlaneError(f"{error}\n--- {self.log}:\n{self._last_lines()}") from None

    def _last_lines(self) -> str:
        return "\n".join(self.said.splitlines()[-_LOG_LINES:])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._launcher.close()
