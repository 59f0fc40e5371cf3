#!/usr/bin/env bash
# Builds the wheels of both packages: hack/wheels.sh [FOLDER]. That of the runtime is built for each processor, here and without another
# compiler; that of the operator is for all of them.
# See docs/decisions/0107-packages-and-images.md.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-dist}
uv=$(command -v uv || echo "$PWD/.tools/uv/bin/uv")
[ -x "$uv" ] || { echo "error: uv is not installed: it is looked for in PATH and in .tools/uv, where hack/setup.sh puts it" >&2; exit 1; }
begun=$(mktemp)
trap 'rm -f "$begun"' EXIT
build() { "$uv" build --quiet --wheel --out-dir "$folder" "$@"; }
for machine in x86_64 aarch64; do DILOCO_WHEEL_MACHINE=$machine build --package diloco; done
build --package diloco-operator
find "$folder" -maxdepth 1 -name '*.whl' -newer "$begun" -exec ls -sh {} + | sort
