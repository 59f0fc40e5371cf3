"""`python -m benchmarks [--kube] [name...]`: run the named benchmarks, or all (with --kube: all on a real control plane).

Exit status 1 when a figure missed its limit, 2 for a wrong name.
"""

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

KUBE_BENCHES: dict[str, str] = {
    "blast-radius": "benchmarks.kube.blast_radius",
    "memory-per-1000-pods": "benchmarks.kube.memory",
    "create-rate": "benchmarks.kube.create_rate",
    "mass-failure": "benchmarks.kube.mass_failure",
    "noisy-neighbour": "benchmarks.kube.noisy_neighbour",
}
"""The same for what needs a real API server (hack/kube/assets.sh brings it)."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="One JSON line per figure.")
    known = BENCHES | KUBE_BENCHES
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(known)}; none: all that need no control plane")
    parser.add_argument("--kube", action="store_true", help="all that need a real control plane")
    given = parser.parse_args(argv)
    names: list[str] = given.names or list(KUBE_BENCHES if given.kube else BENCHES)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(known)}")
    kept = True
    for name in names:
        bench = cast("Callable[[], bool]", importlib.import_module(known[name]).main)
        kept = bench() and kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
