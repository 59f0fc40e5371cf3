"""[poison-loss] The harm of a unit whose contributions are wrong, although each alone could be right.

Eight learners train a small model in lock step with the real coordinator and shard, and with the ledger of a syncer: each step trains
leased samples. From some outer step to the end, one of the units is wrong in one way. The job's loss on held-out samples is divided by the
loss of the same run without the fault; the figure of a fault is the geometric mean over the seeds.

`poison-loss` is the worst of the faults that the guards or the bounds of counters should catch. `poison-loss-let-through` is the worst of
the faults that they let through, and so the known cost of what remains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
from builders.core import Push
from builders.healthy_runs import INTERVAL, UNITS, Uneven, a_training, trainees
from builders.regression import BATCH, Answer, LockStep, Regression, Trainee
from diloco.algorithm.effects import Effect, Merged, Refusal, Skipped
from diloco.algorithm.events import Marks
from diloco.algorithm.fragments import unpack
from diloco.algorithm.shard import CheckedPush
from diloco.contract import Training
from diloco.data.ledger import Ledger
from diloco.syncer.job.work import MOST_SAMPLES, JobWork
from diloco.syncer.streams.sessions import UnitSession
from numpy.typing import NDArray

from benchmarks.figure import Figure

type Values = NDArray[np.float32]

WRONG = "u0"
HELD_OUT = 10**6
"""Number of a replica that no unit has. Its samples are held out."""
LIMIT = 1.4
"""A refused fault acts in three times half a cycle. A merge is then at most (7 + 3) / (7 + 3 / 20) = 1.4 times as long as without it.
Losses of runs differ by a tenth."""
LIMIT_LET_THROUGH = 2.0
"""A fault that is let through acts in all merges, and may oppose the others' direction: 1.73 was measured."""


@dataclass(frozen=True, slots=True)
class Size:
    right: int
    """Cycles of the fragments before the fault, in which the guards learn and samples are committed."""
    wrong: int
    """Cycles with the fault."""
    judged: int
    """Last cycles with the fault, over which the loss is averaged, since it goes up and down from merge to merge."""
    seeds: int


FULL = Size(right=8, wrong=20, judged=8, seeds=3)
SMOKE = Size(right=5, wrong=1, judged=1, seeds=1)


class Leased(LockStep):
    """A job whose steps train leased samples, with the syncer's bounds of counters."""

    def __init__(self, training: Training, trainees: Mapping[str, Trainee]) -> None:
        self._work = JobWork(Ledger(), training.fragments)
        self._sessions: dict[str, tuple[UnitSession, int]] = {}
        """Unit -> its session, and the steps that its trainer had taken before the session."""
        super().__init__(training, trainees)

    def join(self, unit: str, trainee: Trainee) -> None:
        super().join(unit, trainee)
        before = self._sessions.pop(unit, None)
        if before is not None:
            self._work.end(before[0].holder)
        session = UnitSession(unit, 1, b"", f"{unit}/{self.now}", 1)
        self._sessions[unit] = session, trainee.trainer.step
        self._work.begin(session)
        for _ in self._work.lease(session, MOST_SAMPLES):
            pass  # the ledger notes each lease when it is read

    def done(self, unit: str) -> Marks:
        """What the unit has really trained in its session."""
        session, before = self._sessions[unit]
        trainee = self.trainees[unit]
        steps = trainee.trainer.step - before
        return Marks(session.holder, BATCH * steps, trainee.tokens * steps, steps)

    def base(self, answer: Answer) -> Values:
        """The value that the unit adopted last, for the fragment of its answer."""
        return self.trainees[answer.unit].held[answer.offer.fragment]

    def loss(self) -> float:
        """The loss of the job's parameters on samples that no unit trains."""
        values = [(fragment, self.core.value(fragment.index)) for fragment in self.core.fragments]
        theta = {name: x for fragment, value in values for name, x in unpack(fragment, value).items()}
        return Regression.loss_and_gradients(theta, *Regression.batch(HELD_OUT, 0, 4096))[0]

    def _push(self, unit: str, push: Push) -> Refusal | None:
        """Push as the syncer's exchange does."""
        offer, now = push.offer, float(self.now)
        if refusal := self.core.admit(unit, offer, now):
            return refusal
        decoded = self.core.decode(unit, offer, push.payload)
        if not isinstance(decoded, CheckedPush):
            self.core.reject(unit, offer, now)
            return decoded
        if refusal := self.core.contribute(unit, offer, decoded, now, self._work.countable_tokens(unit, offer)):
            return refusal
        self._work.offered(offer)
        return None

    def _carry_out(self, action: Effect) -> None:
        if isinstance(action, Merged):
            self._work.closed(action.fragment, action.t, {marks.session for marks in action.marks.values()})
        elif isinstance(action, Skipped):
            self._work.closed(action.fragment, action.t, ())
        super()._carry_out(action)


type Fault = Callable[[Leased, Answer], Answer]


def scaled(factor: float) -> Fault:
    """A fault that scales the outer gradient."""

    def fault(job: Leased, answer: Answer) -> Answer:
        base = job.base(answer)
        return replace(answer, values=base + np.float32(factor) * (answer.values - base))

    return fault


def noise(job: Leased, answer: Answer) -> Answer:
    """A fault: a random direction, as far as the unit really went."""
    base = job.base(answer)
    chance = np.random.default_rng(answer.offer.t).standard_normal(base.size).astype(np.float32)
    return replace(answer, values=base + chance * (np.linalg.norm(answer.values - base) / np.linalg.norm(chance)))


def counted(tokens: int = 1, samples: int = 1, steps: bool = True) -> Fault:
    """A fault that counts `tokens` times the tokens and `samples` times the samples. If not `steps`, all in a single step."""

    def fault(job: Leased, answer: Answer) -> Answer:
        offer, marks = answer.offer, answer.offer.marks
        false = replace(marks, samples=samples * marks.samples, tokens=tokens * marks.tokens)
        offer = replace(offer, tokens=tokens * offer.tokens, steps=offer.steps if steps else 1, marks=false)
        return replace(answer, offer=offer)

    return fault


CAUGHT: dict[str, Fault] = {
    "gradients x 20": scaled(20),
    "gradients x 50": scaled(50),
    "gradients x 90": scaled(90),
    "tokens x 4": counted(tokens=4),
    "tokens x 60": counted(tokens=60),
    "tokens x 5000": counted(tokens=5000),
    "tokens x 60 without samples": counted(tokens=60, samples=0),
}
LET_THROUGH: dict[str, Fault] = {
    "sign": scaled(-1),
    "sign, gradients x 9": scaled(-9),
    "gradients x 5": scaled(5),
    "gradients x 9": scaled(9),
    "noise": noise,
    "all in one step": counted(steps=False),
    "samples and tokens x 4": counted(tokens=4, samples=4),
}


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    right = [loss(a_job(seed, size), size) for seed in range(size.seeds)]
    for name, faults, limit in (("poison-loss", CAUGHT, LIMIT), ("poison-loss-let-through", LET_THROUGH, LIMIT_LET_THROUGH)):
        ratios: dict[str, float] = {}
        refused: dict[str, int] = {}
        for what, fault in faults.items():
            jobs = [wrong(a_job(seed, size), fault) for seed in range(size.seeds)]
            ratios[what] = math.exp(fmean(math.log(loss(job, size) / without) for job, without in zip(jobs, right, strict=True)))
            refused[what] = sum(len(job.rejected) + len(job.refused) for job in jobs)
        worst = max(ratios.values())
        yield Figure(
            name, worst, "ratio of losses", limit, worst <= limit, size.seeds * len(faults), {"by_fault": ratios, "refused": refused}
        )


def a_job(seed: int, size: Size) -> Leased:
    """A job that has run for `size.right` cycles, with all units right."""
    job = Leased(a_training(), trainees([Uneven(replica, seed) for replica in range(UNITS)]))
    job.change = lambda answer: replace(answer, offer=replace(answer.offer, marks=job.done(answer.unit)))
    return job.run(INTERVAL * size.right)


def wrong(job: Leased, fault: Fault) -> Leased:
    """Make the unit `WRONG` wrong from now on."""
    right = job.change

    def change(answer: Answer) -> Answer:
        true = right(answer)
        return fault(job, true) if answer.unit == WRONG else true

    job.change = change
    return job


def loss(job: Leased, size: Size) -> float:
    """Run the job through `size.wrong` further cycles, and return its mean loss over the last ones."""
    job.run(INTERVAL * (size.wrong - size.judged))
    return fmean(job.run(INTERVAL).loss() for _ in range(size.judged))
