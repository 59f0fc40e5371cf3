"""The Python environment of a peer. It is made once, from a file beside this one with versions and hashes, and kept in the cache."""

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
    """The folder for an environment with these requirements. Other requirements, or another Python, have another folder."""
    cache = Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/root")) / ".cache")
    pinned = hashlib.sha256(requirements + sys.version.encode()).hexdigest()[:12]
    return cache / "diloco-operator" / "peers" / f"{name}-{pinned}"


def python_of(name: str) -> Path:
    """The Python of the peer's environment. If the environment is missing, it is made, with downloads of what uv's cache lacks."""
    requirements = Path(__file__).with_name(f"{name}.txt")
    env_folder = folder(requirements.read_bytes(), name, os.environ)
    env_folder.parent.mkdir(parents=True, exist_ok=True)
    with env_folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (env_folder / _DONE).exists():
            uv = shutil.which("uv") or str(ROOT / ".tools" / "uv" / "bin" / "uv")
            python = str(env_folder / "bin" / "python")
            subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(env_folder)], check=True)
            subprocess.run([uv, "pip", "sync", "--quiet", "--require-hashes", "--python", python, str(requirements)], check=True)
            (env_folder / _DONE).touch()
    return env_folder / "bin" / "python"
