#!/usr/bin/env bash
# Jobs whose nodes a real autoscaler makes and whose quota the real Kueue gives, on a real control plane. Karpenter and Kueue are built once
# (7 minutes on 2 cores) and kept in ~/.cache/diloco-operator. Arguments go to pytest: `hack/growth.sh -k kueue`.
# See docs/decisions/0172-autoscaler-in-tests.md.
set -euo pipefail
cd "$(dirname "$0")/.."
hack/kube/assets.sh etcd kube-apiserver kube-controller-manager kube-scheduler kubectl helm karpenter kueue
.venv/bin/pytest tests/growth --durations=0 "$@"
# `make bench-smoke` builds neither program, so the benchmarks that need them run in their small size here.
if [ $# -eq 0 ]; then .venv/bin/python -m benchmarks --growth --smoke; fi
