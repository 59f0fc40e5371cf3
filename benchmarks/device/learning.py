"""[learning] What a job of M units loses against one program, at equal tokens, with 35 M parameters: the protocol of [learning-law].

First, every arm is tuned with one trial at half of the steps, and then trained for all steps with the best rates. That is repeated with one
more trial for each arm, and so on until the time is up. A later run continues: it repeats no trial that `.device/learning.jsonl` has.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.device.part import PACK, PartOptions, print_result, run
from benchmarks.law.law import DATA_PARALLEL, Law, Scale
from benchmarks.law.losses import Losses, trainers
from benchmarks.law.train import trained
from benchmarks.law.trials import SIZES, Trial

PUBLISHED: Final[Mapping[int, float]] = {1: -0.1, 2: 0.7, 4: 2.0}
"""M -> how far the loss of M units is above data parallel, in percent, with 35 M parameters. From Table 4 of arXiv 2503.09799, registered
beforehand."""
FULL: Final = Scale("35m", "35m", (1, 2, 4), (11,), 1, False, 30)
SMALL: Final = Scale("smoke", "smoke", (1, 2), (11,), 1, False, 5)
NAME: Final = "learning.jsonl"
RESERVE_SECONDS: Final = 5


def tell(known: Mapping[Trial, float]) -> None:
    """Print how the best trial of each arm compares with the best trial of a single program that trained as many tokens."""
    groups = {(trial.size, trial.halves, trial.seed) for trial in known}
    for size, halves, seed in sorted(groups):
        group = {trial: loss for trial, loss in known.items() if (trial.size, trial.halves, trial.seed) == (size, halves, seed)}
        best = {arm: min((trial for trial in group if trial.arm == arm), key=group.__getitem__) for arm in {t.arm for t in group}}
        if (base := best.get(DATA_PARALLEL)) is None:
            continue
        for arm, trial in sorted(best.items(), key=lambda pair: pair[0].units):
            if arm == DATA_PARALLEL:
                continue
            print_result(
                f"gap M={arm.units}",
                100 * (known[trial] / known[base] - 1),
                "% of the loss of one program",
                published=PUBLISHED.get(arm.units),
                loss=round(known[trial], 4),
                loss_of_one=round(known[base], 4),
                size=size,
                tokens=SIZES[size].tokens * halves // 2,
                seed=seed,
                tried=sum(trial_.arm == arm for trial_ in group),
                rates=[trial.rates.inner, trial.rates.outer, trial.rates.momentum],
            )


def main(given: PartOptions) -> None:
    # A small run begins anew each time.
    file = given.out / NAME if given.small else PACK / NAME
    if given.small:
        file.unlink(missing_ok=True)
    with trainers() as pool:
        losses = Losses(file, pool, partial(trained, device=given.device))

        def end(*_: object) -> None:
            """Print what is known, and end at once. Unfinished trials are lost."""
            _end(losses, file, given.out)

        signal.signal(signal.SIGALRM, end)
        signal.alarm(max(1, int(given.left) - RESERVE_SECONDS))
        for least in itertools.count(1):
            scale = SMALL if given.small else FULL
            Law(Scale(scale.size, scale.larger, scale.units, scale.seeds, least, scale.inside, scale.interval), losses).found()
            if given.small:
                break
        signal.alarm(0)
        end()


def _end(losses: Losses, file: Path, out: Path) -> None:
    tell(losses.known)
    print_result("trials", len(losses.known), "trained to the end, in all runs", file=NAME)
    if file.parent != out and file.exists():
        shutil.copy(file, out / NAME)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    run(main)
