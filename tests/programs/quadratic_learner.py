"""A whole learner in numpy: fits a quadratic whose minimum is known. A pod's command in end-to-end tests, and a small example of the API.

    python tests/programs/quadratic_learner.py

The contract's environment says where the syncer is. These, all optional, say how to behave:

QUADRATIC_STEP_MS      a step lasts this long (default 10)
QUADRATIC_TENSORS      number of 8x8 tensors beside one embedding (default 31)
QUADRATIC_BATCH        samples of a batch (default 4)
QUADRATIC_LAYOUT       "other": a model of other shapes, which a running job must refuse
QUADRATIC_NAN_AT_STEP  from this local step on the parameters are NaN
QUADRATIC_CRASH_AT_STEP  raise at this local step
QUADRATIC_PAUSE_AT_STEP  after this local step pause for QUADRATIC_PAUSE_SECONDS, and announce it
QUADRATIC_FINISH_AT_STEP  after this local step end the job
QUADRATIC_LEAVE_AT_STEP  after this local step leave the loop, and end with status 0
QUADRATIC_SAVE_TO      once the job is done, write the embedding into this folder, QUADRATIC_SAVE_SECONDS after `close`
QUADRATIC_SAVE_FAILS_UNIT  this unit raises in place of that
QUADRATIC_NAN_UNIT, QUADRATIC_CRASH_UNIT …  only in this unit and its first attempt
QUADRATIC_COMPILE_SECONDS  the first step lasts so much longer
QUADRATIC_NO_CLOSE     "1": when drained it ends with status 0 without `close`
QUADRATIC_OWN_DATA     "1": it feeds itself, each unit the same numbers, and leases nothing
QUADRATIC_TRACE        append one JSON line {"unit", "attempt", "step", "t", "numbers", "ended"} a step to this file
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from diloco import contract
from diloco.learner.arrays import ArrayStore
from diloco.session.session import Session
from numpy.typing import NDArray

TOKENS_PER_SAMPLE = 16
LEARNING_RATE = 0.05


class Quadratic:
    """loss(w) = mean (w - target)^2 / 2 with a little noise from each sample; the same in every process."""

    def __init__(self, tensors: int, width: int) -> None:
        chance = np.random.default_rng(7)
        shapes = {"embedding": (16, width)} | {f"layer{i:02}": (8, width) for i in range(tensors)}
        self.target = {name: chance.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        self.weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}

    def train(self, numbers: NDArray[np.int64]) -> float:
        noise = np.float32(0.01) * np.sin(numbers.astype(np.float32)).mean()
        for name, weight in self.weights.items():
            weight -= np.float32(LEARNING_RATE) * (weight - self.target[name] + noise)
        return self.loss()

    def loss(self) -> float:
        squares = [float(np.square(self.weights[name] - target).mean()) for name, target in self.target.items()]
        return sum(squares) / len(squares) / 2


def main() -> None:
    width = 4 if os.environ.get("QUADRATIC_LAYOUT") == "other" else 8
    model = Quadratic(int(os.environ.get("QUADRATIC_TENSORS", "31")), width)
    step_seconds = float(os.environ.get("QUADRATIC_STEP_MS", "10")) / 1000
    nan_at, crash_at = _misbehave_at("NAN"), _misbehave_at("CRASH")
    pause_at, finish_at, leave_at = _misbehave_at("PAUSE"), _misbehave_at("FINISH"), _misbehave_at("LEAVE")
    with Session.join(ArrayStore(model.weights, embeddings=["embedding"]), framework="numpy") as session:
        batch_size = int(os.environ.get("QUADRATIC_BATCH", "4"))
        own_data = os.environ.get("QUADRATIC_OWN_DATA") == "1"
        for numbers in _own(session, batch_size) if own_data else session.batches(lambda numbers: numbers, batch_size):
            deadline = time.monotonic() + step_seconds
            if not session.step_count:
                time.sleep(float(os.environ.get("QUADRATIC_COMPILE_SECONDS", "0")))
            loss = model.train(numbers)
            if session.step_count + 1 == crash_at:
                raise RuntimeError("crash as requested at this step")
            if nan_at is not None and session.step_count + 1 >= nan_at:
                for weight in model.weights.values():
                    weight.fill(np.nan)
            time.sleep(max(0.0, deadline - time.monotonic()))
            session.step(tokens=len(numbers) * TOKENS_PER_SAMPLE, loss=loss)
            _trace(session, numbers)
            if session.step_count == pause_at:
                with session.paused("evaluation", at_most=600):
                    time.sleep(float(os.environ["QUADRATIC_PAUSE_SECONDS"]))
            if session.step_count == finish_at:
                session.finish("as requested at this step")
            if session.step_count == leave_at:
                break
        if session.draining and os.environ.get("QUADRATIC_NO_CLOSE") == "1":
            os._exit(0)
        if session.done:
            session.evaluate(model.loss(), tokens=1000)
    if folder := os.environ.get("QUADRATIC_SAVE_TO"):
        time.sleep(float(os.environ["QUADRATIC_SAVE_SECONDS"]))
        if os.environ[contract.ENV_UNIT] == os.environ.get("QUADRATIC_SAVE_FAILS_UNIT"):
            raise OSError(errno.ENOSPC, "No space left on device")
        np.save(Path(folder) / f"{os.environ[contract.ENV_UNIT]}.npy", model.weights["embedding"])


def _own(session: Session, batch_size: int) -> Iterator[NDArray[np.int64]]:
    while not session.over:
        yield np.arange(batch_size) + session.step_count * batch_size


def _misbehave_at(kind: str) -> int | None:
    step = os.environ.get(f"QUADRATIC_{kind}_AT_STEP")
    only = os.environ.get(f"QUADRATIC_{kind}_UNIT")
    if step is None or (only and (os.environ[contract.ENV_UNIT], os.environ[contract.ENV_ATTEMPT]) != (only, "1")):
        return None
    return int(step)


def _trace(session: Session, numbers: NDArray[np.int64]) -> None:
    path = os.environ.get("QUADRATIC_TRACE")
    if not path:
        return
    line = {
        "unit": os.environ[contract.ENV_UNIT],
        "attempt": int(os.environ[contract.ENV_ATTEMPT]),
        "step": session.step_count,
        "t": session.t,
        "numbers": numbers.tolist(),
        "ended": time.monotonic(),
    }
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
