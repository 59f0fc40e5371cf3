"""The command line of a benchmark whose inputs come from a seed: `python -m benchmarks.NAME --seed N`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

from benchmarks.figure import Figure, measured_commit


def main(prog: str, figures: Callable[[int], Iterator[Figure]]) -> int:
    """Print the figures for the seed on the command line. Returns the exit status: 0 if each figure is within its limit."""
    parser = argparse.ArgumentParser(prog=f"python -m {prog}", description="One JSON line for each figure.")
    parser.add_argument("--seed", type=int, default=0, help="of the fleets")
    commit, kept = measured_commit(), True
    for figure in figures(parser.parse_args().seed):
        sys.stdout.write(figure.line(smoke=False, commit=commit) + "\n")
        kept = kept and figure.ok
    return 0 if kept else 1
