"""Where JAX, torch.compile (Inductor) and Triton keep what they compiled in any pod, so that a restarted unit need not compile it again.

See docs/decisions/0050-local-pods-and-nodes.md.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

_FOLDERS = {"JAX_COMPILATION_CACHE_DIR": "jax", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
CACHE_VARIABLES = tuple(_FOLDERS)
"""Variables that tell the compilers their folders. One in the command's environment wins over the folder in the state directory."""
_EVERY_PROGRAM = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
"""By default JAX keeps only programs that take a second or longer to compile. A small model is many programs that each take less."""
MOST_BYTES = 1 << 30


def cache_variables(state_dir: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that make the compilers use the folders. `environment`: the part of the command's environment that pods get. Pure."""
    folders = {variable: environment.get(variable, str(state_dir / "compiled" / name)) for variable, name in _FOLDERS.items()}
    return {**folders, **_EVERY_PROGRAM}


def cache_folders(state_dir: Path) -> tuple[Path, ...]:
    return tuple(state_dir / "compiled" / name for name in _FOLDERS.values())


def trim_caches(state_dir: Path, most: int = MOST_BYTES) -> None:
    """Delete the oldest entries of each cache that is larger than `most` bytes. Raises OSError."""
    for folder in cache_folders(state_dir):
        _trim(folder, most)


def _trim(folder: Path, most: int) -> None:
    """Trim one cache. An entry at the top of its folder goes as a whole: a program of Triton is a folder with several files."""
    entries = []
    for entry in folder.glob("*"):
        files = [path.lstat() for path in (entry, *entry.rglob("*")) if path.is_symlink() or not path.is_dir()]
        entries.append((max((file.st_mtime_ns for file in files), default=0), sum(file.st_size for file in files), entry))
    size = sum(size for _, size, _ in entries)
    for _, entry_size, entry in sorted(entries):
        if size <= most:
            return
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)
        size -= entry_size
