#!/usr/bin/env bash
# Fast checks and the unit tests that are not marked slow: no cluster, no training. A new unit test belongs to it without being told.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
$bin/ruff format --check --quiet .
$bin/ruff check --quiet .
said=$($bin/lint-imports 2>&1) || { echo "$said"; exit 1; }
unset PYTHONDONTWRITEBYTECODE  # see hack/test.sh
OMP_NUM_THREADS=1 exec $bin/pytest tests/unit -m "not slow" --numprocesses=2 --dist=loadgroup -q "$@"
