"""Units of one job take its sequence numbers for the same samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.exchange import LocalSyncer, Place, job_file, training, weights
from diloco.contract import Exit
from diloco.learner.arrays import ArrayStore
from diloco.learner.leave import Leave
from diloco.session.session import Session

pytestmark = pytest.mark.slow

type Takes = Callable[[Session], Any]
OTHER: dict[str, Takes] = {
    "samples=100, seed=1": lambda session: next(iter(session.numbers(2, samples=100, seed=1))),
    "samples=99, seed=0": lambda session: next(iter(session.numbers(2, samples=99))),
    "shards=100, seed=0": lambda session: next(iter(session.shards(100))),
}
SAME: list[Takes] = [
    lambda session: next(iter(session.numbers(4, samples=100))),
    lambda session: next(iter(session.batches(lambda numbers: numbers, 2))),  # a program that does not say what they are
]


def test_a_unit_that_takes_other_samples_than_the_others_is_refused_and_both_are_named(tmp_path: Path) -> None:
    place = Place(tmp_path, job_file(training(1_000_000)))
    with LocalSyncer(place) as syncer:

        def join(unit: str, attempt: int = 1) -> Session:
            store, environment = ArrayStore(weights(), embeddings=("w0",)), place.of_learner(syncer.address, unit, attempt)
            return Session.join(store, framework="numpy", environment=environment)

        with join("a") as first:
            next(iter(first.numbers(2, samples=100)))
            for attempt, (said, takes) in enumerate(OTHER.items(), 1):
                other = join("b", attempt)
                with pytest.raises(Leave) as left:
                    takes(other)
                assert left.value.status == Exit.REFUSED_LAYOUT
                assert f"unit b takes sequence numbers for {said}, and unit a for samples=100, seed=0" in left.value.message
            for attempt, takes in enumerate(SAME, len(OTHER) + 1):
                with join("b", attempt) as other:
                    takes(other)
