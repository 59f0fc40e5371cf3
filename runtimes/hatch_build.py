"""Compiles the loops of `diloco.kernels` when the package is built: into a wheel, or into a checkout (`uv sync`).

The compiler is the C compiler of Zig, which comes from PyPI in one pinned version: building needs nothing of the machine, and every
machine builds the same code. The library uses nothing of Python, so one wheel fits every Python. `DILOCO_WHEEL_MACHINE` names another
processor for which a wheel is built, on Linux with glibc: x86_64 or aarch64.

See docs/decisions/0062-merge-numerics.md. See docs/decisions/0107-packages-and-images.md.
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

PACKAGE = Path("diloco", "kernels")
LIBRARY = "libkernels.so"
FLAGS = ("-O3", "-std=c11", "-ffp-contract=off", "-fPIC", "-Wall", "-Wextra", "-Werror")
GLIBC = "2.17"
"""The oldest that Python's own wheels for manylinux support."""
MACHINE = "DILOCO_WHEEL_MACHINE"
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""What others call them -> what Zig and wheels do."""


class CompileLoops(BuildHookInterface[Any]):  # type: ignore[misc] # hatchling is there only while the package is built
    """Named in pyproject.toml."""

    _made: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library. hatchling calls this before it gathers the files of a wheel; `version` is "editable" for a checkout, which
        keeps the library."""
        sources = Path(self.root, PACKAGE)
        if version == "editable":
            target, tag = this_machine()
            compile_library(sources, sources / LIBRARY, target)
        else:
            wanted = os.environ.get(MACHINE, "")
            target, tag = glibc_linux(wanted) if wanted else this_machine()
            self._made = tempfile.TemporaryDirectory()
            library = Path(self._made.name, LIBRARY)
            compile_library(sources, library, target)
            for made in (library, digest_of(library)):
                build_data["force_include"][str(made)] = str(PACKAGE / made.name)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder. hatchling calls this when the wheel is written."""
        if self._made is not None:
            self._made.cleanup()


def this_machine() -> tuple[str, str]:
    """(Zig's name of the machine, the wheel's)."""
    machine = platform.machine().lower()
    if sys.platform == "darwin":
        machine = _MACHINES.get(machine, machine)
        return f"{machine}-macos", "macosx_11_0_arm64" if machine == "aarch64" else "macosx_11_0_x86_64"
    if sys.platform != "linux":
        raise RuntimeError(f"diloco can be built on Linux and macOS, not on {sys.platform}")
    if platform.libc_ver()[0] == "glibc":
        return glibc_linux(machine)
    machine = _MACHINES.get(machine, machine)
    return f"{machine}-linux-musl", f"musllinux_1_2_{machine}"


def glibc_linux(machine: str) -> tuple[str, str]:
    """(Zig's name, the wheel's) of Linux with glibc on this processor."""
    machine = _MACHINES.get(machine, machine)
    return f"{machine}-linux-gnu.{GLIBC}", f"manylinux_{GLIBC.replace('.', '_')}_{machine}"


def digest_of(library: Path) -> Path:
    """Return the file beside it with its digest, which is compared before it is loaded."""
    return library.with_name(f"{library.name}.sha256")


def compile_library(folder: Path, library: Path, target: str) -> None:
    """kernels.c once for each level of the processor, and level.c, into one library; beside it the file with its digest."""
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
        for (level, processor), object_file in zip(levels.items(), objects[1:], strict=True):
            compiler(f"-mcpu={processor}", f"-DLEVEL={level}", "-c", str(folder / "kernels.c"), "-o", object_file)
        linked = Path(scratch, library.name)
        compiler("-shared", "-s", *objects, "-o", str(linked))
        made = linked.read_bytes()
    _put(library, made, 0o755)
    _put(digest_of(library), f"{hashlib.sha256(made).hexdigest()}\n".encode(), 0o644)


def _put(path: Path, content: bytes, mode: int) -> None:
    """Whole or not at all. A process that has the old library loaded keeps it: it is replaced, not written over."""
    beside = path.with_name(f"{path.name}.new")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.chmod(mode)
    beside.replace(path)
