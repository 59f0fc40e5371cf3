"""Environments that hold nothing but wheels: what a user has without a checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from builders.documents import ROOT

WITH_UV = f"{ROOT / '.tools' / 'uv' / 'bin'}:{os.environ.get('PATH', '')}"
"""PATH with the uv that `make setup` installs."""


def uv(*arguments: str | Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("UV_PROJECT", "VIRTUAL_ENV"))}
    done = subprocess.run(["uv", *arguments], env={**environment, "PATH": WITH_UV}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Environment:
    """An environment of its own, with nothing of this checkout."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def install(self, wheels: Path, *packages: str) -> Environment:
        uv("venv", "--quiet", "--python", sys.executable, self.folder)
        # A wheel of an earlier build has the same version: uv's cache must not give that one.
        uv("pip", "install", "--quiet", "--reinstall-package", "diloco", "--python", self.python, "--find-links", wheels, *packages)
        return self

    def run(self, program: str, *arguments: str, cwd: Path, status: int = 0) -> str:
        """What a program of it prints, in a shell that knows only it."""
        environment = {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "HOME": str(cwd), "OMP_NUM_THREADS": "1"}
        done = subprocess.run([program, *arguments], env=environment, cwd=cwd, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    @property
    def packages(self) -> set[str]:
        return {re.split(r"-\d", path.name)[0] for path in (self.folder / "lib").glob("python3.*/site-packages/*.dist-info")}
