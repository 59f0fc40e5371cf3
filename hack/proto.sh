#!/usr/bin/env bash
# Regenerates the Python of the protos. tests/unit/diloco/protocol proves that what is committed is up to date.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-runtimes}
.venv/bin/python -m grpc_tools.protoc -I runtimes --python_out="$out" --pyi_out="$out" runtimes/diloco/protocol/diloco.proto
.venv/bin/python -m grpc_tools.protoc -I runtimes --python_out="$out" --pyi_out="$out" runtimes/diloco/ranks/ranks.proto
