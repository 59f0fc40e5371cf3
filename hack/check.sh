#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
$bin/ruff format --check .
$bin/ruff check .
# Without a cache types take two minutes of a core: the other core does all else meanwhile.
types=$(mktemp)
$bin/mypy > "$types" 2>&1 &
mypy=$!
trap 'kill $(jobs -p) 2> /dev/null || true; rm -f "$types"' EXIT
$bin/lint-imports
# Built once from its Go module, in half a minute.
hack/kube/assets.sh actionlint
.tools/kube/bin/actionlint
# What documents, docstrings and figures say of the code; the site's tests need a browser and a minute.
$bin/pytest tests/unit/test_*.py tests/unit/hack/test_quote_figures.py --deselect tests/unit/test_site.py -q
wait $mypy || { cat "$types"; exit 1; }
cat "$types"
