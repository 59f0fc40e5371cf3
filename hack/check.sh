#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
$bin/ruff format --check .
$bin/ruff check .
$bin/mypy
$bin/lint-imports
# Built once from its Go module, in half a minute.
hack/kube/assets.sh actionlint
.tools/kube/bin/actionlint
