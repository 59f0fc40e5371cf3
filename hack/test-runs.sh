# Runs of tests side by side: sourced by hack/test.sh and hack/test-cluster.sh, from the top of the checkout.
# Each run is a process group of its own, which ends with this shell. What it prints is kept and shown when the runs before it have ended.
# See docs/decisions/0127-runs-of-tests.md.
# shellcheck shell=bash
cores=$(env -u OMP_NUM_THREADS nproc)  # nproc heeds that variable
# Learner processes pin their own threads; the test processes must not take the cores from them.
export OMP_NUM_THREADS=1
written=$(mktemp -d)
names=() pids=()
trap 'for pid in "${pids[@]}"; do kill -- -"$pid" 2> /dev/null || true; done; rm -rf "$written"' EXIT
trap 'exit 130' INT TERM HUP

# begin NICENESS NAME COMMAND...
begin() {
  local niceness=$1 name=$2
  shift 2
  : > "$written/$name.log"  # there before it is shown
  # Where the kernel shares the cores out by session, a priority is that of a session.
  # shellcheck disable=SC2016 # expanded by the inner shell
  COVERAGE_FILE="$written/.coverage.$name" NICENESS=$niceness setsid bash -c \
    '(echo "$NICENESS" > /proc/self/autogroup) 2> /dev/null; exec nice -n "$NICENESS" "$@"' - "$@" >> "$written/$name.log" 2>&1 < /dev/null &
  names+=("$name") pids+=($!)
}

# Show each run in turn, as it goes. Returns 1 if one failed.
finish() {
  local failed=0 index
  for index in "${!names[@]}"; do
    printf '\n--- %s\n' "${names[index]}"
    # In the background, for a signal would wait for a command in the foreground.
    tail --lines=+1 --follow --pid="${pids[index]}" "$written/${names[index]}.log" &
    wait $!
    if ! wait "${pids[index]}"; then
      failed=1
      printf '%s: FAILED\n' "${names[index]}"
    fi
  done
  return $failed
}
