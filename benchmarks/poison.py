"""[poison] What a poisoned unit leaves in the parameters: nothing.

Four learners train a small model in lock step with the real coordinator and shard. From some outer step on one of them is sick: it sends
NaN, a value of 1e30, or 10^9 times the tokens. The bytes of all fragments and of the momentum must then be those of a run in which the unit
left at that step. The unit is sick from the first step in some cases, and in others once the guards have learnt; all codings are tried. The
value is the number of cases in which a byte differs.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from builders.regression import Answer, LockStep, Regression, Trainee, poisoned
from diloco.contract import Training

from benchmarks.figure import Figure

SICK = "u-3"
POISONS: dict[str, Callable[[Answer], Answer]] = {
    "NaN": lambda answer: poisoned(answer, math.nan),
    "1e30": lambda answer: poisoned(answer, 1e30),
    "tokens": lambda answer: replace(answer, offer=replace(answer.offer, tokens=answer.offer.tokens * 10**9)),
}
CODINGS = ("None", "BFloat16", "Int4")
FRAGMENTS, INTERVAL = 4, 8


@dataclass(frozen=True, slots=True)
class Size:
    learnt: int
    """Outer steps until the guards have learnt: more than four merges of each fragment."""
    sick: int
    """Outer steps with the sick unit."""


FULL = Size(learnt=20 * INTERVAL, sick=20 * INTERVAL)
SMOKE = Size(learnt=6 * INTERVAL, sick=2 * INTERVAL)


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    wrong: list[str] = []
    refused = cases = 0
    for coding, first in itertools.product(CODINGS, (0, size.learnt)):
        expected = digest(absent(coding, first, size))
        for name, poison in POISONS.items():
            job = sick(coding, first, size, poison)
            cases += 1
            count = len(job.rejected) + len(job.refused)
            refused += count
            if digest(job) != expected or not count:
                wrong.append(f"{name} from outer step {first + 1}, {coding}")
    yield Figure("poison", len(wrong), "cases", 0, not wrong, cases, {"wrong": wrong, "refused": refused})


def absent(coding: str, first: int, size: Size) -> LockStep:
    """Run a job that the unit leaves after outer step `first`."""
    job = a_job(coding).run(first)
    job.leave(SICK)
    return job.run(size.sick)


def sick(coding: str, first: int, size: Size, poison: Callable[[Answer], Answer]) -> LockStep:
    """Run a job in which every answer of the unit is poisoned after outer step `first`."""
    job = a_job(coding).run(first)
    job.change = lambda answer: poison(answer) if answer.unit == SICK else answer
    return job.run(size.sick)


def a_job(coding: str) -> LockStep:
    training = Training.model_validate(
        {"steps": 10**6, "sync_interval": INTERVAL, "fragments": FRAGMENTS, "overlap_steps": 2, "compression": coding}
    )
    return LockStep(training, {f"u-{m}": Trainee(Regression(m)) for m in range(4)})


def digest(job: LockStep) -> str:
    """A digest of the values, momentum and residuals that a snapshot would hold."""
    hasher = hashlib.sha256()
    shard = job.core.shard
    for array in (*shard.values, *shard.momentum, *(x for x in shard.residual if x is not None)):
        hasher.update(array.tobytes())
    return hasher.hexdigest()
