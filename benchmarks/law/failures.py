"""[failure-quality] Held-out loss of a job whose units die and come back, against undisturbed twins of it, at equal tokens.

Real jobs: a syncer and four torch learners over loopback, which die by SIGKILL after drawn numbers of steps and come back after drawn
times, so that units train for some 88 % of the time, as the published M = 1 does with 150,000 chips. Each seed has one such job and two
twins without a death. The value is the mean excess of the disturbed jobs' loss over their twins', in units of what the twins' own noise
lets a mean of so many seeds have at 95 %: at most 1 is within it.

`.law/failures.jsonl` has every job that has ended, and none is trained twice: delete it to begin anew.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Final, Self

from diloco import contract
from diloco.simulation.failures import ReturnDelay
from numpy.random import default_rng
from scipy.stats import t as student

from benchmarks import ROOT
from benchmarks.figure import Figure, rounded
from benchmarks.law.runs import Outcome, Runs
from benchmarks.local_job import Death, Learner, run_job

LIMIT: Final = 1.0
FILE: Final = ROOT / ".law" / "failures.jsonl"
UNITS: Final = 4
INTERVAL: Final = 24
GOODPUT: Final = (0.84, 0.92)
"""Where the mean goodput of the disturbed jobs must lie: else the figure says nothing, and is not ok."""
_LAST_DEATH: Final = 0.85
"""Share of the steps that a unit takes on average: what dies later is not back before the end."""
_LOST_STEPS: Final = 600
"""What the others take while one unit is away and imports torch: its own last death comes so much earlier for each before it."""
_LIMIT_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Job:
    """One training."""

    seed: int
    twin: int
    """0: units die. 1 and 2: none does."""
    steps: int
    """Steps of a unit, on average."""
    steps_between_deaths: int
    out_seconds: float
    """Mean time until what died is started again."""
    width: int
    batch: int = 16
    context: int = 64
    held_out: int = 262_144

    @property
    def tokens(self) -> int:
        """Return the tokens at which the job ends."""
        return UNITS * self.steps * self.batch * self.context

    @property
    def deaths(self) -> Mapping[str, Sequence[Death]]:
        """Return those of each unit: geometric in steps, and away for an exponentiated Weibull time as slices are."""
        found: dict[str, Sequence[Death]] = {}
        for unit in range(UNITS):
            random = default_rng([self.seed, unit])
            delay = ReturnDelay.with_mean(self.out_seconds)
            drawn: list[Death] = []
            while not self.twin:
                death = Death(int(random.geometric(1 / self.steps_between_deaths)), delay.draw(random))
                taken = sum(each.after_steps for each in (*drawn, death))
                if taken + _LOST_STEPS * len(drawn) > _LAST_DEATH * self.steps:
                    break
                drawn.append(death)
            found[f"torch-{unit}"] = drawn
        return found

    def as_json(self) -> dict[str, Any]:
        """Return it for a line."""
        return asdict(self)

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> Self:
        """Return the job of a line. Raises TypeError when it is none."""
        return cls(**line)

    def __str__(self) -> str:
        return f"failure-quality: seed {self.seed}, " + (f"twin {self.twin}" if self.twin else "units die")


FULL: Final = [Job(seed, twin, 4000, 1800, 8.0, width=48) for seed in (11, 12, 13) for twin in (0, 1, 2)]
SMOKE: Final = [Job(7, twin, 60, 60, 0.2, width=16, held_out=4096) for twin in (0, 1, 2)]


def measure(*, smoke: bool) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs[Job](Path(folder) / "runs.jsonl" if smoke else FILE, train, Job.as_json)
        runs.read(Job.from_json)
        jobs = SMOKE if smoke else FULL
        yield figure({job: runs.run(job) for job in jobs}, sorted(runs.commits))


def train(job: Job) -> Outcome:
    """Return the loss of the final parameters, nats per byte, and what happened. Raises JobFailed."""
    training = contract.Training.model_validate(
        {"steps": 10 * job.steps, "tokens": job.tokens, "syncInterval": INTERVAL, "compression": "BFloat16"}
    )
    flags = {
        "--width": job.width,
        "--heads": 2,
        "--context": job.context,
        "--batch": job.batch,
        "--seed": job.seed,
        "--held-out-bytes": job.held_out,
        "--corpus-bytes": job.tokens + job.context,
        "--log-every": 100,
    }
    arguments = [str(part) for flag in flags.items() for part in flag]
    learners = [Learner(unit, "diloco.trainers.byte_lm_torch", arguments, deaths=deaths) for unit, deaths in job.deaths.items()]
    done = run_job(training, learners, _LIMIT_SECONDS)
    if done.result.held_out_loss is None:
        raise RuntimeError("the job ended without a held-out loss: no learner reported its evaluation")
    return {
        "loss": done.result.held_out_loss,
        "tokens": done.result.tokens,
        "deaths": sum(done.deaths.values()),
        "wanted_deaths": sum(len(deaths) for deaths in job.deaths.values()),
        "goodput": round(done.goodput, 4),
    }


def excess(losses: Mapping[Job, float]) -> tuple[float, float]:
    """Return the mean over seeds of the disturbed job's loss - the mean of its twins', and what noise lets that mean be at 95 %.

    Two twins of a seed differ by sqrt(2) times the deviation of one job; the excess of a seed has sqrt(3 / 2) of it.
    """
    by_seed = {job.seed: {other.twin: losses[other] for other in losses if other.seed == job.seed} for job in losses}
    found = mean(of[0] - (of[1] + of[2]) / 2 for of in by_seed.values())
    deviation = math.sqrt(mean((of[1] - of[2]) ** 2 / 2 for of in by_seed.values()))
    bound = float(student.ppf(0.975, len(by_seed))) * deviation * math.sqrt(1.5 / len(by_seed))
    return found, bound


def figure(outcomes: Mapping[Job, Outcome], commits: Sequence[str]) -> Figure:
    """Return the figure."""
    losses = {job: float(outcome["loss"]) for job, outcome in outcomes.items()}
    found, bound = excess(losses)
    disturbed = [outcome for job, outcome in outcomes.items() if not job.twin]
    goodput = mean(float(outcome["goodput"]) for outcome in disturbed)
    value = found / bound if bound else math.inf
    details = {
        "excess_percent": round(100 * found / mean(losses.values()), 3),
        "noise_percent": round(100 * bound / mean(losses.values()), 3),
        "goodput": round(goodput, 4),
        "deaths": [int(outcome["deaths"]) for outcome in disturbed],
        "losses": {
            str(twin) if twin else "units die": rounded([loss for job, loss in losses.items() if job.twin == twin], 4) for twin in range(3)
        },
        "tokens": sorted({int(outcome["tokens"]) for outcome in outcomes.values()}),
        "commits": list(commits),
    }
    as_drawn = all(outcome["deaths"] == outcome["wanted_deaths"] for outcome in disturbed)
    within = value <= LIMIT and GOODPUT[0] <= goodput <= GOODPUT[1] and as_drawn
    return Figure("failure-quality", value, "of the twins' noise", LIMIT, within, len(disturbed), details)
