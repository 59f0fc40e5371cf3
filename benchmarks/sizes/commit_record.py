"""[commit-record-64MiB] [commit-record-1GiB] As `commit-record-4MiB`, with larger fragments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks import commit_record
from benchmarks.figure import Figure


def measure(*, smoke: bool) -> Iterator[Figure]:
    if smoke:
        for name in ("commit-record-64MiB", "commit-record-1GiB"):
            yield replace(commit_record.figure(1, 2, 1), name=name)
        return
    yield commit_record.figure(64, 4, 7)
    yield commit_record.figure(1024, 2, 3)
