#!/usr/bin/env bash
# The operator from its chart, a syncer and learners in containers on real kubelets. Needs root on Debian; `python -m nodes check` says what is
# missing. Programs and images are made once and kept in ~/.cache/diloco-operator; the machine is left as it was. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH=hack
.venv/bin/python -m nodes check
hack/kube/assets.sh etcd kube-apiserver kube-controller-manager kube-scheduler kubectl helm kubelet coredns
.venv/bin/python -m nodes prepare
exec .venv/bin/python -m nodes run .venv/bin/pytest tests/nodes --durations=0 "$@"
