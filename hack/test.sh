#!/usr/bin/env bash
# Every test, two processes side by side, progress as it goes, coverage at the end. Arguments go to pytest: `hack/test.sh -k reconcile`.
set -euo pipefail
cd "$(dirname "$0")/.."
# With arguments, pytest itself has the programs brought if one of the chosen tests needs them (tests/conftest.py).
if [ $# -gt 0 ]; then exec .venv/bin/pytest "$@"; fi
hack/kube/assets.sh
# Learner processes pin their own threads; the test processes must not take the cores from them.
export OMP_NUM_THREADS=1
exec .venv/bin/pytest --numprocesses=2 --dist=loadgroup --durations=15 --cov --cov-report=term:skip-covered
