"""The Python environment of a peer, made once from the versions and hashes of a file beside this one, and then kept in the cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks import ROOT

_DONE = "complete"


def folder(requirements: bytes, name: str, environment: Mapping[str, str]) -> Path:
    """Return where the environment of these requirements is kept: another one for other requirements, and for another Python."""
    cache = Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/root")) / ".cache")
    pinned = hashlib.sha256(requirements + sys.version.encode()).hexdigest()[:12]
    return cache / "diloco-operator" / "peers" / f"{name}-{pinned}"


def python_of(name: str) -> Path:
    """Return the Python of the peer's environment, after making it, which downloads what is not in uv's cache."""
    requirements = Path(__file__).with_name(f"{name}.txt")
    made = folder(requirements.read_bytes(), name, os.environ)
    made.parent.mkdir(parents=True, exist_ok=True)
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / _DONE).exists():
            uv = shutil.which("uv") or str(ROOT / ".tools" / "uv" / "bin" / "uv")
            python = str(made / "bin" / "python")
            subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(made)], check=True)
            subprocess.run([uv, "pip", "sync", "--quiet", "--require-hashes", "--python", python, str(requirements)], check=True)
            (made / _DONE).touch()
    return made / "bin" / "python"
