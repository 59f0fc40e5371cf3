"""The newest attempt of each unit, durable before the attempt joins: a restarted syncer must not accept an older one.

See docs/decisions/0070-sessions-and-fences.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from diloco.syncer.snapshots import fsync_directory

FILE = "fences.json"


class FencesError(Exception):
    """The file cannot be read. The message says why and what to do."""


def load_fences(directory: Path, job_uid: str) -> dict[str, int]:
    """The fences of job `job_uid`; none if the file is another job's, or missing. Raises FencesError for a file that is damaged."""
    path = directory / FILE
    try:
        stored = json.loads(path.read_bytes())
        if stored["job"] != job_uid:
            return {}
        return {str(unit): int(attempt) for unit, attempt in stored["attempts"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FencesError(
            f"{path} cannot be used: {error}. "
            "It lists the attempts that may not return: remove it if no learner of an older attempt can still be alive."
        ) from error


def save_fences(directory: Path, job_uid: str, fences: Mapping[str, int]) -> None:
    """Write the fences durably: into a temporary file, fsynced and renamed. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / f".{FILE}.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump({"job": job_uid, "attempts": dict(sorted(fences.items()))}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / FILE)
    fsync_directory(directory)
