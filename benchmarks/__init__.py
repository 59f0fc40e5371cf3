"""The figures that docs/results quotes. README.md beside this file says which to run when."""

import os
import sys
from pathlib import Path

import diloco  # noqa: F401 - before gRPC is imported: it sets gRPC's handling of forks

ROOT = Path(__file__).resolve().parents[1]

# Write bytecode, as an image holds that of all its libraries. Otherwise each process that starts would compile them anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

sys.path.append(str(ROOT / "tests"))  # benchmarks make jobs, nodes and pods with the tests' builders
