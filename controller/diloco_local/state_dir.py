"""The state directory: one control plane uses it at a time, and leaves volumes and logs for the next."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from diloco_local.compilation_cache import trim_caches


def claim_folder(state_dir: Path, namespace: str, claim: str) -> Path:
    """The folder of a volume claim. The next control plane finds there what the last one's syncer wrote."""
    return state_dir / "volumes" / namespace / claim


class StateDirBusy(RuntimeError):
    """Another control plane uses this directory."""


class StateDirUnusable(RuntimeError):
    """The directory cannot be created or written."""


class StateDir:
    """Layout: `volumes/` (claims; they stay after the command), `logs/`, `compiled/` (caches of compilers; may be deleted), `pods/` (this
    run's only), `clusters/NAME/` (the same of each other cluster), `identity`, `lock`."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock = -1

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def cluster(self, name: str) -> StateDir:
        """The directory of another cluster of the same run."""
        return StateDir(self.path / "clusters" / name)

    @property
    def operator_log(self) -> Path:
        return self.logs / "operator.log"

    def identity(self) -> str:
        """A unique name of this directory, the same in every run. A command recognises by it what it made in a cluster. Raises
        StateDirUnusable."""
        file = self.path / "identity"
        try:
            if not file.exists():
                file.write_text(secrets.token_hex(6))
            return file.read_text()
        except OSError as error:
            raise self._unusable(error) from error

    def __enter__(self) -> Self:
        """Lock the folder. Raises StateDirBusy, StateDirUnusable."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
            os.close(lock)
            whose = f" (process {holder})" if holder else ""
            raise StateDirBusy(
                f"another command{whose} uses the state directory {self.path}; wait for it, stop it, or choose another with --state-dir"
            ) from None
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
            trim_caches(self.path)
            shutil.rmtree(self.path / "pods", ignore_errors=True)  # a run that was killed leaves it
            (self.path / "pods").mkdir(mode=0o700)  # secrets are mounted below
        except OSError as error:
            os.close(lock)
            raise self._unusable(error) from error
        self._lock = lock
        return self

    def _unusable(self, error: OSError) -> StateDirUnusable:
        where = f": {error.filename}" if error.filename else ""
        return StateDirUnusable(f"the state directory {self.path} cannot be used: {error.strerror}{where}; choose another with --state-dir")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._lock)
        self._lock = -1
