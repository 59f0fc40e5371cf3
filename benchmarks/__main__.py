"""`python -m benchmarks [name...]`: run the named benchmarks, or all. Exit status 1 when a figure missed its limit, 2 for a wrong name."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from typing import cast

BENCHES: dict[str, str] = {
    "reconcile-pass": "benchmarks.reconcile_pass",
    "failure-to-replacement": "benchmarks.failure_to_replacement",
    "units-per-second": "benchmarks.units_per_second",
    "weight-error": "benchmarks.weight_error",
    "exchange-overhead": "benchmarks.exchange_overhead",
    "survivor-gap": "benchmarks.survivor_gap",
    "learning-parity": "benchmarks.learning_parity",
}
"""Name of each figure and its module, whose `main() -> bool` prints the line (`benchmarks.report.emit`) and tells whether the limit was
kept. Imported only when it runs: not every figure needs every framework. Cheap ones first."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="One JSON line per figure.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(BENCHES)}; none: all")
    names: list[str] = parser.parse_args(argv).names or list(BENCHES)
    if unknown := [name for name in names if name not in BENCHES]:
        parser.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(BENCHES)}")
    kept = True
    for name in names:
        bench = cast("Callable[[], bool]", importlib.import_module(BENCHES[name]).main)
        kept = bench() and kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
