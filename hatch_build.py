"""Compiles the loops of `diloco.kernels` into the package when it is built, also for a checkout (`uv sync`).

The compiler is the C compiler of Zig, which comes from PyPI in one pinned version: building needs nothing of the machine, and every
machine builds the same code. The library uses nothing of Python, so one wheel fits every Python.

See docs/decisions/0147-compiled-loops.md.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path("runtimes", "diloco", "kernels")
FLAGS = ("-O3", "-std=c11", "-ffp-contract=off", "-fPIC", "-Wall", "-Wextra", "-Werror")
GLIBC = "2.17"
"""The oldest that Python's own wheels for manylinux support."""


class CompileLoops(BuildHookInterface[Any]):
    """Named in pyproject.toml."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it gathers the files of a wheel; `version` is "editable" for a checkout."""
        folder = Path(self.root, SOURCES)
        target, tag = this_machine()
        compile_library(folder, folder / "libkernels.so", target)
        build_data["artifacts"] += [str(SOURCES / "libkernels.so"), str(SOURCES / "libkernels.so.sha256")]
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag}"


def this_machine() -> tuple[str, str]:
    """(Zig's name of the machine, the wheel's)."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    if sys.platform == "darwin":
        return f"{machine}-macos", "macosx_11_0_arm64" if machine == "aarch64" else "macosx_11_0_x86_64"
    if sys.platform != "linux":
        raise RuntimeError(f"diloco-operator can be built on Linux and macOS, not on {sys.platform}")
    if platform.libc_ver()[0] == "glibc":
        return f"{machine}-linux-gnu.{GLIBC}", f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
    return f"{machine}-linux-musl", f"musllinux_1_2_{machine}"


def compile_library(folder: Path, library: Path, target: str) -> None:
    """kernels.c once for each level of the processor, and level.c, into one library; beside it a file with its digest, which is compared
    before the library is loaded."""
    levels = {"v1": "baseline"}
    if target.startswith("x86_64"):
        levels |= {"v3": "x86_64_v3", "v4": "x86_64_v4"}
    with tempfile.TemporaryDirectory() as scratch:
        environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": f"{scratch}/global", "ZIG_LOCAL_CACHE_DIR": f"{scratch}/local"}

        def compiler(*arguments: str) -> None:
            command = [sys.executable, "-m", "ziglang", "cc", "-target", target, *FLAGS, *arguments]
            subprocess.run(command, env=environment, check=True)

        objects = [f"{scratch}/level.o", *(f"{scratch}/kernels-{level}.o" for level in levels)]
        compiler("-mcpu=baseline", "-c", str(folder / "level.c"), "-o", objects[0])
        for (level, processor), made in zip(levels.items(), objects[1:], strict=True):
            compiler(f"-mcpu={processor}", f"-DLEVEL={level}", "-c", str(folder / "kernels.c"), "-o", made)
        linked = Path(scratch, library.name)
        compiler("-shared", "-s", *objects, "-o", str(linked))
        made = linked.read_bytes()
    _put(library, made, 0o755)
    _put(library.with_name(f"{library.name}.sha256"), f"{hashlib.sha256(made).hexdigest()}\n".encode(), 0o644)


def _put(path: Path, content: bytes, mode: int) -> None:
    """Whole or not at all. A process that has the old library loaded keeps it: it is replaced, not written over."""
    beside = path.with_name(f"{path.name}.new")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.chmod(mode)
    beside.replace(path)
