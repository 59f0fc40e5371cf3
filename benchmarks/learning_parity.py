"""[learning-parity] Held-out loss of a 4-unit mixed job against plain single-program training, at equal tokens.

The job has a real syncer and four real learner processes over loopback, two in JAX and two in torch, at two speeds. The baseline is one
program with the same model from the same first parameters and four times a unit's batch. It takes as many steps as give the same number of
tokens. Both choose their inner learning rate from the same grid, on a seed that is not counted; the schedule and everything else are equal.
The value is the median over the counted seeds of the ratio of the two losses.

`python -m benchmarks.learning_parity --help` shows how to run it shorter or longer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from builders.child_processes import die_with_parent
from diloco import contract

from benchmarks import ROOT
from benchmarks.figure import Figure, measured_commit, rounded
from benchmarks.local_job import Learner, run_job

LIMIT = 1.03
UNITS = 4
SYNC_INTERVAL = 24
TUNING_SEED = 0
FIRST_SEED = 11
"""Counted seeds start here. None of them was used to choose the outer optimizer or the length of the run."""
LEAST_STEPS = 600
LEAST_SEEDS = 3
"""With fewer steps or seeds the figure is printed, but never ok: it means nothing."""
SMOKE_ARGUMENTS = ("--steps", "12", "--seeds", "1", "--learning-rates", "4e-3", "--batch", "2", "--width", "16", "--quorum", str(UNITS))
"""The job takes less than a second. The quorum keeps it from ending before all units have joined: a later one would wait for ever."""
_SPEEDS = {"jax-0": 1.0, "jax-1": 0.7, "torch-0": 1.0, "torch-1": 0.7}


@dataclass(frozen=True)
class Setting:
    """One comparison's configuration."""

    steps: int
    seeds: int
    learning_rates: tuple[float, ...]
    batch: int
    context: int
    width: int
    decay_to: float
    outer_learning_rate: float
    outer_momentum: float
    method: str
    quorum: int
    timeout: float

    def trainer_arguments(self, learning_rate: float, seed: int, batch: int) -> list[str]:
        flags = {
            "--width": self.width,
            "--context": self.context,
            "--heads": 2,
            "--batch": batch,
            "--seed": seed,
            "--learning-rate": learning_rate,
            "--decay-to": self.decay_to,
            "--log-every": 100,
        }
        return [str(part) for flag in flags.items() for part in flag]

    @property
    def training(self) -> contract.Training:
        """The job's training. It ends when units have committed `steps` local steps on average, not after a number of outer steps: on a
        busy machine these are longer than local steps, and each rate would have another number of tokens."""
        return contract.Training.model_validate(
            {
                "steps": 4 * self.steps + SYNC_INTERVAL,
                "tokens": self.steps * UNITS * self.batch * self.context,
                "syncInterval": SYNC_INTERVAL,
                "quorum": self.quorum,
                "merge": {"method": self.method, "embeddings": "Average"},
                "outerOptimizer": {"learningRate": self.outer_learning_rate, "momentum": self.outer_momentum},
            }
        )


@dataclass(frozen=True)
class Run:
    """One training: its rate, and the held-out loss in nats per byte after these tokens."""

    learning_rate: float
    tokens: int
    loss: float


def train_job(setting: Setting, learning_rate: float, seed: int) -> Run:
    """Train the mixed job. Raises JobFailed."""
    began = time.monotonic()
    arguments = setting.trainer_arguments(learning_rate, seed, setting.batch)
    learners = [
        Learner(unit, f"diloco.trainers.byte_lm_{unit.partition('-')[0]}", arguments, relative_speed=speed)
        for unit, speed in _SPEEDS.items()
    ]
    result = run_job(setting.training, learners, setting.timeout).result
    if result.held_out_loss is None:
        raise RuntimeError("the job ended without a held-out loss: no learner reported its evaluation")
    shares = ", ".join(f"{unit.unit} {unit.steps} steps" for unit in result.units)
    _log(f"seed {seed}, rate {learning_rate}: job {result.held_out_loss:.4f} after {result.tokens} tokens ({shares})", began)
    # The model has a part of the training in the last H outer steps, which is not committed. The plain program gets tokens for all of it.
    uncommitted = SYNC_INTERVAL * UNITS * setting.batch * setting.context
    return Run(learning_rate, result.tokens + uncommitted, result.held_out_loss)


def train_alone(setting: Setting, learning_rate: float, seed: int, tokens: int) -> Run:
    """Train the plain program on `tokens` tokens, to within one step."""
    began = time.monotonic()
    batch = UNITS * setting.batch
    steps = max(1, round(tokens / (batch * setting.context)))
    arguments = setting.trainer_arguments(learning_rate, seed, batch)
    command = [sys.executable, "-m", "diloco.trainers.byte_lm_torch", *arguments, "--alone", "--steps", str(steps)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=setting.timeout, check=False, preexec_fn=die_with_parent
    )
    if done.returncode:
        raise RuntimeError(f"the baseline ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    line = json.loads(done.stdout.splitlines()[-1])
    _log(f"seed {seed}, rate {learning_rate}: alone {line['heldOutLoss']:.4f} after {line['tokens']} tokens, {steps} steps", began)
    return Run(learning_rate, int(line["tokens"]), float(line["heldOutLoss"]))


def compare(setting: Setting) -> list[tuple[Run, Run]]:
    """(job, alone) for every counted seed. Each uses the rate that was best for it on `TUNING_SEED`, which does not count."""
    with ThreadPoolExecutor(2) as pool:
        job_rate, alone_rate = _best_rates(setting, pool)
        counted = [(seed, train_job(setting, job_rate, seed)) for seed in range(FIRST_SEED, FIRST_SEED + setting.seeds)]
        return list(pool.map(lambda run: (run[1], train_alone(setting, alone_rate, run[0], run[1].tokens)), counted))


def _best_rates(setting: Setting, pool: ThreadPoolExecutor) -> tuple[float, float]:
    """The best rates of the job and of the plain program. With a single rate nothing is trained, since there is nothing to choose."""
    if len(setting.learning_rates) == 1:
        return setting.learning_rates[0], setting.learning_rates[0]
    jobs = [train_job(setting, rate, TUNING_SEED) for rate in setting.learning_rates]
    alone = list(pool.map(lambda job: train_alone(setting, job.learning_rate, TUNING_SEED, job.tokens), jobs))
    return min(jobs, key=_loss).learning_rate, min(alone, key=_loss).learning_rate


def measure(*, smoke: bool) -> Iterator[Figure]:
    yield figure(_parse(SMOKE_ARGUMENTS if smoke else ()))


def figure(setting: Setting) -> Figure:
    pairs = compare(setting)
    ratios = [job.loss / alone.loss for job, alone in pairs]
    steps = min(job.tokens for job, _ in pairs) / (UNITS * setting.batch * setting.context)
    value = statistics.median(ratios)
    within = value <= LIMIT and steps >= LEAST_STEPS and len(ratios) >= LEAST_SEEDS
    details = {
        "ratios": rounded(ratios, 4),
        "job_losses": rounded([job.loss for job, _ in pairs], 4),
        "alone_losses": rounded([alone.loss for _, alone in pairs], 4),
        "job_rate": pairs[0][0].learning_rate,
        "alone_rate": pairs[0][1].learning_rate,
        "rates": list(setting.learning_rates),
        "steps": round(steps),
        "decay_to": setting.decay_to,
        "outer": [setting.method, setting.outer_learning_rate, setting.outer_momentum],
    }
    return Figure("learning-parity", value, "ratio", LIMIT, within, len(ratios), details)


def main(argv: Sequence[str]) -> bool:
    """Print the figure of the given setting. True if it keeps the limit."""
    parity = figure(_parse(argv))
    sys.stdout.write(parity.line(smoke=False, commit=measured_commit()) + "\n")
    return parity.ok


def _loss(run: Run) -> float:
    return run.loss


def _log(message: str, began: float) -> None:
    sys.stderr.write(f"learning-parity: {message}, {time.monotonic() - began:.0f} s\n")
    sys.stderr.flush()


def _parse(argv: Sequence[str]) -> Setting:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning_parity", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--steps", type=int, default=2000, help="local steps of a unit, and steps of the baseline, at least")
    add("--seeds", type=int, default=3)
    add(
        "--learning-rates",
        type=float,
        nargs="+",
        default=[1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2],
        help="grid of inner learning rates, the same for both",
    )
    add("--batch", type=int, default=16, help="samples per step of a unit; the baseline's is four times as large")
    add("--context", type=int, default=32)
    add("--width", type=int, default=32)
    add("--decay-to", type=float, default=1.0, help="share of the inner learning rate that is left at the end; 1: it stays")
    add("--outer-learning-rate", type=float, default=contract.OuterOptimizer().learning_rate)
    add("--outer-momentum", type=float, default=contract.OuterOptimizer().momentum)
    add("--method", default="RDA", choices=["RDA", "Average"])
    add("--quorum", type=int, default=1, help="units that must train for an outer step")
    add("--timeout", type=float, default=1200, help="of one training, seconds")
    given = parser.parse_args(argv)
    return Setting(
        steps=given.steps,
        seeds=given.seeds,
        learning_rates=tuple(given.learning_rates),
        batch=given.batch,
        context=given.context,
        width=given.width,
        decay_to=given.decay_to,
        outer_learning_rate=given.outer_learning_rate,
        outer_momentum=given.outer_momentum,
        method=given.method,
        quorum=given.quorum,
        timeout=given.timeout,
    )


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
