"""[commit-record-64MiB] Like `commit-record-4MiB`, with a larger fragment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks import commit_record
from benchmarks.figure import Figure


def measure(*, smoke: bool) -> Iterator[Figure]:
    if smoke:
        yield replace(commit_record.figure(1, 2, 1), name="commit-record-64MiB")
        return
    yield commit_record.figure(64, 4, 7)
