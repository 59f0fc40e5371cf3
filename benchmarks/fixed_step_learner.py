"""The learner of the exchange's benchmarks: a model of a given size and a step of a given length. Writes the time of each step's end.

    python -m benchmarks.fixed_step_learner TIMES --mebibytes 4 --step-seconds 0.05 [--alone] [--pause PAUSE]

TIMES gets one line for each step: seconds of CLOCK_MONOTONIC, which all processes of a machine share; pushes that wait or are under way;
and how often a fragment's parameters were overwritten in this step. While the file PAUSE exists, the learner takes no step; it makes
another file when it pauses, see `paused`. With `--alone` the same loop runs without a session, for comparison, and writes only the seconds.
The program ends with the process that started it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import numpy as np
import numpy.typing as npt
from diloco.learner.arrays import ArrayStore
from diloco.session.session import AdapterHooks, Session

type Weights = dict[str, npt.NDArray[np.float32]]

BATCH = 8
TENSORS, COLUMNS = 48, 256
"""Two tensors for each of the 24 fragments."""
POLL = 0.01


def paused(pause: Path) -> Path:
    """The file that the program makes as soon as it pauses."""
    return pause.with_suffix(".paused")


def shapes(mebibytes: float) -> dict[str, tuple[int, int]]:
    """Shapes for `mebibytes` of float32 parameters, in tensors of nearly equal size."""
    rows, more = divmod(int(mebibytes * (1 << 20)) // 4 // COLUMNS, TENSORS)
    return {f"w{i:02}": (rows + 1 if i < more else rows, COLUMNS) for i in range(TENSORS)}


def model(mebibytes: int) -> Weights:
    """A model of normally distributed values."""
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes(mebibytes).items()}


def steps(weights: Weights, batches: Iterator[object], step_seconds: float) -> Iterator[None]:
    """Yield once for each step. A step changes one tensor, each in its turn, and ends `step_seconds` after it began."""
    for _, weight in zip(batches, cycle(weights.values()), strict=False):
        deadline = time.monotonic() + step_seconds
        weight *= np.float32(0.999)
        time.sleep(max(0.0, deadline - time.monotonic()))
        yield


def processor_times() -> str:
    """Processor seconds of this thread and of its process so far, as two fields of a line of TIMES."""
    return f"{time.thread_time():.6f} {time.process_time():.6f}"


def parser_of_rig() -> argparse.ArgumentParser:
    """A parser for the arguments that ExchangeRig gives to every learner's program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("times", type=Path)
    parser.add_argument("--mebibytes", type=int, required=True)
    parser.add_argument("--step-seconds", type=float, required=True)
    return parser


def arguments() -> argparse.Namespace:
    parser = parser_of_rig()
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--bare", action="store_true", help="of programs that can be alone with a BareExchange")
    parser.add_argument("--pause", type=Path)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    weights = model(given.mebibytes)
    with given.times.open("w", encoding="ascii", buffering=1) as times:
        if given.alone:
            for _ in steps(weights, iter(lambda: 0, 1), given.step_seconds):
                times.write(f"{time.monotonic():.6f}\n")
            return
        written: list[str] = []
        hooks = AdapterHooks(on_adopt=lambda names: written.append(names[0]))
        with Session.join(ArrayStore(weights), framework="numpy", hooks=hooks) as session:
            for _ in steps(weights, session.batches(lambda numbers: numbers, BATCH), given.step_seconds):
                while given.pause is not None and given.pause.exists():
                    paused(given.pause).touch()
                    time.sleep(POLL)
                written.clear()
                session.step(tokens=BATCH * 128)
                times.write(f"{time.monotonic():.6f} {session._link.queued_pushes} {len(written)}\n")


if __name__ == "__main__":
    main()
