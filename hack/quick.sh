#!/usr/bin/env bash
# Fast checks and the unit tests that are not marked slow: no cluster, no training, no framework. A new unit test belongs to it without being
# told; one that takes more than 100 ms of a core is marked slow, and hack/cpu_times.py says which do. What imports torch or JAX is below
# tests/frameworks. See docs/decisions/0127-runs-of-tests.md.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
$bin/ruff format --check --quiet .
$bin/ruff check --quiet .
said=$($bin/lint-imports 2>&1) || { echo "$said"; exit 1; }
cores=$(env -u OMP_NUM_THREADS nproc)
# Modules that are slow as a whole are not even imported.
slow=$(grep -rlE '^pytestmark = \[?pytest\.mark\.slow\b' tests/unit --include='test_*.py')
# One process for each core: each collects all tests, for 7 s of a core. Unit tests have no groups, and pytest-xdist takes 3 ms of a core
# for each test to keep groups together. Tests of properties draw fewer examples; `make test` draws all.
# shellcheck disable=SC2086 # one word for each module
OMP_NUM_THREADS=1 exec $bin/pytest tests/unit -m "not slow" ${slow//tests\//--ignore=tests\/} --numprocesses="$cores" --dist=worksteal \
  --hypothesis-profile=quick -q "$@"
