#!/usr/bin/env bash
# Every test, several processes side by side, progress as it goes, coverage at the end. Arguments go to pytest: `hack/test.sh -k reconcile`.
# See docs/decisions/0179-two-runs-of-tests.md.
set -euo pipefail
cd "$(dirname "$0")/.."
# With arguments, pytest itself has the programs brought if one of the chosen tests needs them (tests/conftest.py).
if [ $# -gt 0 ]; then exec .venv/bin/pytest "$@"; fi
hack/kube/assets.sh
cores=$(env -u OMP_NUM_THREADS nproc)  # nproc heeds that variable
# Bytecode is kept, whatever the shell says: without it each process compiles the tests, this program and half of its libraries anew.
unset PYTHONDONTWRITEBYTECODE
# Learner processes pin their own threads; the test processes must not take the cores from them.
export OMP_NUM_THREADS=1
written=$(mktemp -d)
options=(--dist=loadgroup --durations=15 --cov --cov-report= --cov-fail-under=0)

# The unit tests compute all the time; the others start programs and wait for them. So both run at once, and the unit tests have the priority
# of learners: with that of control planes and operators they starve them. Where the kernel shares the cores out by session, a priority is
# that of a session.
# shellcheck disable=SC2016 # expanded by the inner shell
low='(echo 10 > /proc/self/autogroup) 2> /dev/null; exec nice -n 10 "$@"'
COVERAGE_FILE=$written/.coverage.unit setsid bash -c "$low" - .venv/bin/pytest tests/unit tests/numerics --numprocesses="$cores" \
  "${options[@]}" > "$written/unit.log" 2>&1 < /dev/null &
unit=$!
trap 'kill -- -$unit 2> /dev/null || true; rm -rf "$written"' EXIT
trap 'exit 130' INT TERM HUP

# One process more than cores, six at most: each may start a control plane of its own (600 MB).
failed=0
COVERAGE_FILE=$written/.coverage.programs .venv/bin/pytest tests --ignore=tests/unit --ignore=tests/numerics \
  --numprocesses=$((cores < 5 ? cores + 1 : 6)) "${options[@]}" || failed=1
printf '\nThe unit tests, which have run meanwhile:\n'
tail --lines=+1 --follow --pid=$unit "$written/unit.log"
wait $unit || failed=1
export COVERAGE_FILE=$written/.coverage
.venv/bin/coverage combine --quiet "$written"
.venv/bin/coverage report --skip-covered || failed=1
exit $failed
