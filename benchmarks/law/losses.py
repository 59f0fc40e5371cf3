"""Losses of trials of the law, two of which are trained at the same time, each in a process with one thread."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from builders.child_processes import die_with_parent

from benchmarks.law.runs import Runs
from benchmarks.law.trials import Trial

AT_ONCE: Final = 2


@contextlib.contextmanager
def trainers() -> Iterator[ProcessPoolExecutor]:
    """Yield processes that train, AT_ONCE of them; they end with this one."""
    with ProcessPoolExecutor(AT_ONCE, multiprocessing.get_context("spawn"), initializer=die_with_parent) as pool:
        # A process ends with the thread that started it: this one, and not one that hands in a trial.
        for started in [pool.submit(int) for _ in range(AT_ONCE)]:
            started.result()
        yield pool


class Losses:
    """Held-out losses by trial."""

    def __init__(self, file: Path, pool: Executor, train: Callable[[Trial], float]) -> None:
        """`pool` calls `train` for what the file does not have. Raises ValueError when a line of the file is no run."""
        self._runs = Runs[Trial](file, lambda trial: {"loss": pool.submit(train, trial).result()}, Trial.as_json)
        self._runs.read(Trial.from_json)

    @property
    def known(self) -> Mapping[Trial, float]:
        """Return those that were trained."""
        return {trial: float(outcome["loss"]) for trial, outcome in self._runs.known.items()}

    @property
    def commits(self) -> list[str]:
        """Return the commits of those, sorted."""
        return sorted(self._runs.commits)

    def loss(self, trial: Trial) -> float:
        """Return the loss of a trial, which is trained if it was not. Raises what a training raises."""
        return float(self._runs.run(trial)["loss"])

    def all(self, trials: Iterable[Trial]) -> Mapping[Trial, float]:
        """Return the losses of all, in this order."""
        wanted = list(dict.fromkeys(trials))
        return dict(zip(wanted, at_once(self.loss, wanted), strict=True))


def at_once[A, B](do: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """Return what `do` returns for each, AT_ONCE at the same time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(do, items))
