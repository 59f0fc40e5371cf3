"""The learner of the benchmarks of links: as `fixed_step_learner`, but it says what waits in it, and can be made to pause.

    python -m benchmarks.link_learner STEPS PAUSE --mebibytes 24 --step-seconds 0.05

STEPS gets one line a step: seconds of CLOCK_MONOTONIC, pushes that wait or are under way, and how often the parameters of a fragment were
overwritten in this step. While a file PAUSE exists no step is taken; there is another file from then on, see `paused`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from diloco.learner.arrays import ArrayStore
from diloco.learner.connection import Connection
from diloco.learner.session import Session
from diloco.learner.solo import SoloMember

from benchmarks.fixed_step_learner import BATCH, model, steps

POLL = 0.01


def paused(pause: Path) -> Path:
    """The file that the program makes as soon as it pauses."""
    return pause.with_suffix(".paused")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=Path)
    parser.add_argument("pause", type=Path)
    parser.add_argument("--mebibytes", type=int, required=True)
    parser.add_argument("--step-seconds", type=float, required=True)
    given = parser.parse_args()
    weights = model(given.mebibytes)
    written: list[str] = []
    with (
        given.steps.open("w", encoding="ascii", buffering=1) as lines,
        Session.join(ArrayStore(weights), framework="numpy", on_adopt=lambda names: written.append(names[0])) as session,
    ):
        member = session._member
        assert isinstance(member, SoloMember)
        connection = member._link
        assert isinstance(connection, Connection)
        for _ in steps(weights, session.batches(lambda numbers: numbers, BATCH), given.step_seconds):
            while given.pause.exists():
                paused(given.pause).touch()
                time.sleep(POLL)
            written.clear()
            session.step(tokens=BATCH * 128)
            lines.write(f"{time.monotonic():.6f} {connection.queued_pushes} {len(written)}\n")


if __name__ == "__main__":
    main()
