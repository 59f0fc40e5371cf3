"""Where the JAX programs of all pods keep what they compiled, so that a unit that comes back does not compile it again.

See docs/decisions/0050-local-pods.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FOLDER = "JAX_COMPILATION_CACHE_DIR"
"""The variable by which JAX finds the folder. Set in the environment of the command, it wins over the one in the state directory."""
_EVERY_PROGRAM = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
"""By default JAX keeps only what takes it a second or longer. A small model is many programs that each take less."""
MOST_BYTES = 1 << 30


def cache_variables(state_dir: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """What makes JAX use the folder. `environment`: what pods get of the command's own. Pure."""
    return {FOLDER: environment.get(FOLDER, str(cache_folder(state_dir))), **_EVERY_PROGRAM}


def cache_folder(state_dir: Path) -> Path:
    return state_dir / "compiled" / "jax"


def trim_cache(state_dir: Path, most: int = MOST_BYTES) -> None:
    """Delete the oldest programs while all together are larger than `most` bytes. Raises OSError."""
    files = [(status.st_mtime_ns, status.st_size, path) for path in cache_folder(state_dir).glob("*") if (status := path.stat())]
    size = sum(size for _, size, _ in files)
    for _, file_size, path in sorted(files):
        if size <= most:
            return
        path.unlink(missing_ok=True)
        size -= file_size
