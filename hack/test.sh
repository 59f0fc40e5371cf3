#!/usr/bin/env bash
# Every test, several processes side by side, progress as it goes, coverage at the end. Arguments go to pytest: `hack/test.sh -k reconcile`.
set -euo pipefail
cd "$(dirname "$0")/.."
# With arguments, pytest itself has the programs brought if one of the chosen tests needs them (tests/conftest.py).
if [ $# -gt 0 ]; then exec .venv/bin/pytest "$@"; fi
hack/kube/assets.sh
# Two processes more than cores: tests of whole jobs need 0.4 cores on average, as they wait for controllers, leases and steps of learners.
# Each process may hold 1.3 GB itself and a control plane of its own (800 MB), so there are six at most.
cores=$(env -u OMP_NUM_THREADS nproc)  # nproc heeds that variable
# Bytecode is kept, whatever the shell says: without it each process compiles the tests, this program and half of its libraries anew.
unset PYTHONDONTWRITEBYTECODE
# Learner processes pin their own threads; the test processes must not take the cores from them.
export OMP_NUM_THREADS=1
exec .venv/bin/pytest --numprocesses=$((cores < 5 ? cores + 2 : 6)) --dist=loadgroup --durations=15 --cov --cov-report=term:skip-covered
