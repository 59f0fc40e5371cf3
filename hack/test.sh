#!/usr/bin/env bash
# The tests that need no cluster, several processes side by side, coverage at the end. Arguments go to pytest: `hack/test.sh -k reconcile`.
# DILOCO_TESTS=all: with all examples of the tests of properties, and with the tests marked `full`.
# See docs/decisions/0127-runs-of-tests.md.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -gt 0 ]; then exec .venv/bin/pytest "$@"; fi
. hack/test-runs.sh
which="not cluster and not full"
if [ "${DILOCO_TESTS:-}" = all ]; then which="not cluster"; fi
options=(-m "$which" --durations=15 --cov --cov-report= --cov-fail-under=0)

# The unit tests compute all the time; jobs that train wait much of it. So all run at once, and the unit tests have the priority of learners:
# with that of operators they starve them. They have no groups, to keep which pytest-xdist needs 3 ms of a core for each test. One process
# alone imports torch, JAX and what stands on them.
begin 0 jobs .venv/bin/pytest tests/e2e tests/contract tests/images --numprocesses="$cores" --dist=loadgroup "${options[@]}"
begin 10 units .venv/bin/pytest tests/unit tests/numerics --numprocesses="$cores" --dist=worksteal "${options[@]}"
begin 10 frameworks .venv/bin/pytest tests/frameworks "${options[@]}"
failed=0
finish || failed=1
export COVERAGE_FILE=$written/.coverage
.venv/bin/coverage combine --quiet "$written"
.venv/bin/coverage report --skip-covered || failed=1
exit $failed
