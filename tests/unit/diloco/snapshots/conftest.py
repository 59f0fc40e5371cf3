"""Where copies go: a folder, and an object store in memory."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest


@pytest.fixture(params=["file", "memory"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield f"file://{tmp_path}/remote"
        return
    folder = f"/{uuid.uuid4().hex}"
    yield f"memory:/{folder}"
    memory = fsspec.filesystem("memory")
    if memory.exists(folder):
        memory.rm(folder, recursive=True)
