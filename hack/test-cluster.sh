#!/usr/bin/env bash
# Every test that needs a real API server, Helm, nodes, Karpenter, Kueue or Prometheus. Their programs are built once (18 minutes on 2
# cores) and kept in ~/.cache/diloco-operator. Arguments go to pytest: `hack/test-cluster.sh tests/cluster/growth -k kueue`.
# `--core`: only what CI runs before each landing (the marker `core`), and only the programs that this needs.
# Real nodes want root on Debian; elsewhere this says what is missing, and runs all the rest.
# See docs/decisions/0082-real-programs-in-tests.md.
# See docs/decisions/0127-runs-of-tests.md.
set -euo pipefail
cd "$(dirname "$0")/.."
cluster=(.venv/bin/pytest tests/cluster tests/contract --numprocesses="$(env -u OMP_NUM_THREADS nproc)" --dist=loadgroup --durations=15)
if [ "${1:-}" = --core ]; then
  hack/kube/assets.sh
  OMP_NUM_THREADS=1 exec "${cluster[@]}" -m core
fi
nodes=(env PYTHONPATH=hack .venv/bin/python -m nodes)
programs=(etcd kube-apiserver kube-controller-manager kube-scheduler kubectl helm helm3 karpenter kueue prometheus promtool)
missing=$("${nodes[@]}" check 2>&1) && missing= && programs+=(kubelet coredns)
hack/kube/assets.sh "${programs[@]}"
if [ $# -gt 0 ]; then
  case $1 in
    tests/cluster/nodes*) "${nodes[@]}" prepare; exec "${nodes[@]}" run .venv/bin/pytest "$@" ;;
    *) exec .venv/bin/pytest "$@" ;;
  esac
fi
. hack/test-runs.sh

begin 0 cluster "${cluster[@]}" -m cluster
# Waits most of the time: for nodes that an autoscaler makes and gives back.
begin 0 growth .venv/bin/pytest tests/cluster/growth --durations=5
failed=0
finish || failed=1
# Alone: kubelets, containers and learners beside other control planes starve each other for minutes.
if [ -z "$missing" ]; then
  "${nodes[@]}" prepare
  "${nodes[@]}" run .venv/bin/pytest tests/cluster/nodes --durations=5 || failed=1
else
  printf '\nNOT RUN: tests/cluster/nodes. %s\n' "$missing"
fi
exit $failed
