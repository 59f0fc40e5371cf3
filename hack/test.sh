#!/usr/bin/env bash
# Every test, several processes side by side, progress as it goes, coverage at the end. Arguments go to pytest: `hack/test.sh -k reconcile`.
set -euo pipefail
cd "$(dirname "$0")/.."
# With arguments, pytest itself has the programs brought if one of the chosen tests needs them (tests/conftest.py).
if [ $# -gt 0 ]; then exec .venv/bin/pytest "$@"; fi
hack/kube/assets.sh
# One process more than cores: tests with a control plane spend much of their time waiting for its controllers. Each process may start a
# control plane of its own (600 MB), so there are six at most.
cores=$(env -u OMP_NUM_THREADS nproc)  # nproc heeds that variable
# Bytecode is kept, whatever the shell says: without it each process compiles the tests, this program and half of its libraries anew.
unset PYTHONDONTWRITEBYTECODE
# Learner processes pin their own threads; the test processes must not take the cores from them.
export OMP_NUM_THREADS=1
exec .venv/bin/pytest --numprocesses=$((cores < 5 ? cores + 1 : 6)) --dist=loadgroup --durations=15 --cov --cov-report=term:skip-covered
