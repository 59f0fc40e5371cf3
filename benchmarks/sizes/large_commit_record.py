"""[commit-record-1GiB] Like `commit-record-4MiB`, with a fragment of 1 GiB. It needs 4 GiB on the disk for temporary files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks import commit_record
from benchmarks.figure import Figure


def measure(*, smoke: bool) -> Iterator[Figure]:
    if smoke:
        yield replace(commit_record.figure(1, 2, 1), name="commit-record-1GiB")
        return
    yield commit_record.figure(1024, 2, 3)
