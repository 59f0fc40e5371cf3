#!/usr/bin/env bash
# Fast checks and the unit tests that are not marked slow: no cluster, no training, no framework. A new unit test belongs to it without being
# told; what imports torch or JAX is below tests/frameworks and runs in `make test`.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
$bin/ruff format --check --quiet .
$bin/ruff check --quiet .
said=$($bin/lint-imports 2>&1) || { echo "$said"; exit 1; }
unset PYTHONDONTWRITEBYTECODE  # see hack/test-runs.sh
cores=$(env -u OMP_NUM_THREADS nproc)
# Modules that are slow as a whole are not even imported.
slow=$(grep -rlE '^pytestmark = \[?pytest\.mark\.slow\b' tests/unit --include='test_*.py')
# One process more than cores: some tests wait for a connection or a process.
# shellcheck disable=SC2086 # one word for each module
OMP_NUM_THREADS=1 exec $bin/pytest tests/unit -m "not slow" ${slow//tests\//--ignore=tests\/} --numprocesses=$((cores + 1)) --dist=loadgroup -q "$@"
