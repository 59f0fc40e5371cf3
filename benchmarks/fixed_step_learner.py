"""The learner of the exchange's benchmarks: a million parameters and a step of exactly 50 ms. Writes the time of each step's end.

    python -m benchmarks.fixed_step_learner TIMES [--alone]

TIMES gets one line a step: seconds of CLOCK_MONOTONIC, which all processes of a machine share. `--alone`: the same loop without a
session, to compare with. It ends with the process that started it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from diloco.learner.arrays import ArrayStore
from diloco.learner.session import Session

type Weights = dict[str, npt.NDArray[np.float32]]

STEP_SECONDS = 0.05
BATCH = 8
TENSORS, SIDE = 40, 160
"""40 x 160 x 160 = 1,024,000 parameters."""


def model() -> Weights:
    rng = np.random.default_rng(0)
    return {f"w{i:02}": rng.normal(size=(SIDE, SIDE)).astype(np.float32) for i in range(TENSORS)}


def steps(weights: Weights, batches: Iterator[object]) -> Iterator[None]:
    """One yield a step; a step ends 50 ms after it began, whatever was done in it."""
    for _ in batches:
        deadline = time.monotonic() + STEP_SECONDS
        weights["w00"] *= np.float32(0.999)
        time.sleep(max(0.0, deadline - time.monotonic()))
        yield


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("times", type=Path)
    parser.add_argument("--alone", action="store_true")
    given = parser.parse_args()
    weights = model()
    with given.times.open("w", encoding="ascii", buffering=1) as times:
        if given.alone:
            for _ in steps(weights, iter(lambda: 0, 1)):
                times.write(f"{time.monotonic():.6f}\n")
            return
        with Session.join(ArrayStore(weights), framework="numpy") as session:
            for _ in steps(weights, session.batches(lambda numbers: numbers, BATCH)):
                session.step(tokens=BATCH * 128)
                times.write(f"{time.monotonic():.6f}\n")


if __name__ == "__main__":
    main()
