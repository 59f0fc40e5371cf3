"""The figures that docs/results quotes. README.md beside this file says which to run when."""

import os
import sys
from pathlib import Path

import diloco  # noqa: F401 - before gRPC, which is not to act on forks

ROOT = Path(__file__).resolve().parents[1]

# As in an image, which holds the bytecode of all its libraries: else each process that starts compiles them anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

sys.path.append(str(ROOT / "tests"))  # benchmarks make jobs, nodes and pods with the tests' builders
