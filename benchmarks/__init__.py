"""The figures that docs/results quotes. README.md beside this file says which to run when."""

import sys
from pathlib import Path

import diloco  # noqa: F401 - before gRPC, which is not to act on forks

ROOT = Path(__file__).resolve().parents[1]

sys.path.append(str(ROOT / "tests"))  # benchmarks make jobs, nodes and pods with the tests' builders
