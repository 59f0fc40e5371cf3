"""The learner of [simulator-truth]: steps of a given length, and a death in the middle of one.

    python -m benchmarks.truth.learner TIMES --mebibytes 1 --step-seconds 0.25 --variation 0.2 --seed 1 --attempt 1 [--dies-in 60]

TIMES gets a line for each step of each attempt: the attempt, and when the step began and its work ended, in seconds of CLOCK_MONOTONIC. The
session's part of a step comes after its work, and so does the time in which the unit rests because the quorum is missing. In the middle of
step `--dies-in` the process kills itself. The program ends with the process that started it.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

import numpy as np
from diloco.learner.arrays import ArrayStore
from diloco.session.session import Session
from diloco.simulation.unit import SHORTEST_STEP
from numpy.random import default_rng

from benchmarks.fixed_step_learner import BATCH, model

TOKENS = BATCH * 128
"""Tokens in a step."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("times", type=Path)
    parser.add_argument("--mebibytes", type=int, required=True)
    parser.add_argument("--step-seconds", type=float, required=True)
    parser.add_argument("--variation", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--dies-in", type=int)
    given = parser.parse_args()
    random = default_rng([given.seed, given.attempt])
    weights = model(given.mebibytes)
    with given.times.open("a", encoding="ascii", buffering=1) as times, Session.join(ArrayStore(weights), framework="numpy") as session:
        for _ in session.batches(lambda numbers: numbers, BATCH):
            began = time.monotonic()
            seconds = given.step_seconds * max(SHORTEST_STEP, 1.0 + given.variation * float(random.standard_normal()))
            if session.step_count + 1 == given.dies_in:
                time.sleep(seconds / 2)
                os.kill(os.getpid(), signal.SIGKILL)
            for weight in weights.values():  # change all, since the guards compare how far units have moved
                weight *= np.float32(0.9999)
            time.sleep(max(0.0, began + seconds - time.monotonic()))
            worked = time.monotonic()
            session.step(tokens=TOKENS)
            times.write(f"{given.attempt} {began:.6f} {worked:.6f}\n")


if __name__ == "__main__":
    main()
