"""[commit-record-*] What it costs to make a merge durable, by the size of the fragment.

The time in which a merge's record is written and synced (merged outer gradient, head, checksums) over the time in which the same disk
takes as many bytes with nothing around them, one after the other. The line has the merge's own time beside it, and the other forms: value
and momentum as they are, and those with the remainder that int4 carries.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO

import numpy as np
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.merge import merge, norms
from diloco.algorithm.outer import nesterov
from diloco.kernels import Vector
from diloco.tape.records import checksum, write_record
from numpy.typing import NDArray

from benchmarks.figure import Figure, rounded

LIMIT = 3.0
"""Beside the one pass over the disk, the checksums of gradient and result are two passes over memory. The rest is for syncs, which vary."""
TENSORS = 4


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def durable(path: Path, write: Callable[[BinaryIO], object]) -> float:
    """Seconds that `write` and a sync of the file take."""
    with path.open("ab", buffering=1 << 16) as file:

        def write_and_sync() -> None:
            write(file)
            file.flush()
            os.fdatasync(file.fileno())

        return seconds(write_and_sync)


def arrays(mebibytes: int, count: int) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(mebibytes << 18, dtype=np.float32) for _ in range(count)]


def merge_seconds(mebibytes: int, learners: int, runs: int) -> float:
    """Seconds of a merge with RDA and the outer step: no network is involved."""
    (fragment,) = make_fragments(Layout(TensorSpec(f"w{i}", (mebibytes << 8, (1 << 10) // TENSORS)) for i in range(TENSORS)), 1)
    *deltas, momentum, value = arrays(mebibytes, learners + 2)
    lengths = [norms(fragment, delta) for delta in deltas]

    def merge_and_step() -> None:
        merged = merge(fragment, [Vector.of_values(delta) for delta in deltas], lengths, [1.0] * learners, "RDA", "RDA")
        assert nesterov(merged.delta, momentum, value, 0.7, 0.9) is not None

    return median([seconds(merge_and_step) for _ in range(runs + 1)][1:])


def figure(mebibytes: int, learners: int, runs: int) -> Figure:
    name = f"commit-record-{mebibytes}MiB" if mebibytes < 1024 else f"commit-record-{mebibytes // 1024}GiB"
    merging = merge_seconds(mebibytes, learners, runs)
    gradient, value = arrays(mebibytes, 2)
    head: dict[str, Any] = {"n": 1, "type": "merge"}

    def record(file: BinaryIO) -> None:
        write_record(file, head | {"checksum": f"{checksum(memoryview(value)):08x}"}, memoryview(gradient))

    def plain(parts: Sequence[NDArray[np.float32]]) -> Callable[[BinaryIO], None]:
        def write(file: BinaryIO) -> None:
            file.writelines(memoryview(part).cast("B") for part in parts)

        return write

    forms: dict[str, list[float]] = {"record": [], "gradient": [], "value_momentum": [], "value_momentum_remainder": [], "no_sync": []}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "tape"
        for _ in range(runs):
            for form, write in (
                ("gradient", plain([gradient])),
                ("record", record),
                ("value_momentum", plain([gradient, value])),
                ("value_momentum_remainder", plain([gradient, value, value])),
            ):
                forms[form].append(durable(path, write))
                path.unlink()
            with path.open("ab", buffering=1 << 16) as file:
                forms["no_sync"].append(seconds(lambda file=file: record(file)))  # type: ignore[misc]
            path.unlink()
    typical = {form: median(times) for form, times in forms.items()}
    ratios = [a / b for a, b in zip(forms["record"], forms["gradient"], strict=True)]
    value_ = median(ratios)
    details = {
        "learners": learners,
        "merge_seconds": round(merging, 4),
        **{f"{form}_seconds": round(seconds_, 4) for form, seconds_ in typical.items()},
        "record_over_merge": round(typical["record"] / merging, 3),
        "all": rounded(ratios, 2),
    }
    return Figure(name, value_, "record ÷ its bytes alone", LIMIT, value_ <= LIMIT, runs, details)


def measure(*, smoke: bool) -> Iterator[Figure]:
    yield figure(4, 4, 2 if smoke else 15)
