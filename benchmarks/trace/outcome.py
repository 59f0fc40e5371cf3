"""The outcome of a week under a rule. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

from benchmarks.figure import percentile
from benchmarks.trace.inputs import START, TraceJob, available
from benchmarks.trace.world import Ran, Week


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times are in seconds, but those of decisions are milliseconds of processor time."""

    tokens_per_hour: float
    mean_completion: float
    p99_completion: float
    mean_fairness: float
    p99_fairness: float
    moves_per_job: float
    below_minimum: float
    decision: float
    """Median."""
    p99_decision: float

    @classmethod
    def of(cls, week: Week, ran: Ran, rivals: float) -> Outcome:
        """Sum up a week. `rivals`: mean number of jobs at a time. It is the same for all rules, so that all are compared with the same
        times."""
        completions, decisions = list(ran.completions.values()), [1000 * seconds for seconds in ran.decisions]
        share = available(week.slices) / max(1.0, rivals)
        fairness = [ran.completions[job.key] / isolated(job, share) for job in week.jobs]
        return cls(
            tokens_per_hour=ran.tokens / week.seconds * 3600,
            mean_completion=fmean(completions),
            p99_completion=percentile(completions, 0.99),
            mean_fairness=fmean(fairness),
            p99_fairness=percentile(fairness, 0.99),
            moves_per_job=ran.moves / len(completions),
            below_minimum=ran.below_minimum,
            decision=percentile(decisions, 0.5),
            p99_decision=percentile(decisions, 0.99),
        )


def isolated(job: TraceJob, share: float) -> float:
    """Seconds that the job would take alone on `share` slices of mean speed. Finish-time fairness divides by this (Themis, NSDI 2020)."""
    return START + job.run_time * job.size / min(share, job.max)


def over_seeds(values: list[float]) -> dict[str, float]:
    """The geometric mean, the least and the largest of ratios."""
    mean = math.exp(fmean(map(math.log, values)))
    return {"mean": round(mean, 4), "least": round(min(values), 4), "largest": round(max(values), 4)}
