"""Small files that must survive this process, whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from diloco.syncer.snapshots.store import fsync_directory


def write_json(path: Path, value: Any) -> None:
    """Write `value` durably: into a temporary file, fsynced and renamed. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    fsync_directory(path.parent)
