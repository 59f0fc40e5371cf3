#!/usr/bin/env bash
# hack/device/run.sh [--device cpu|cuda] [--minutes 9] [--out DIR] [--strict] [PART...]: shows what a GPU does with this project, as JSON
# lines. In a checkout with .venv it runs in that; else, or with PYTHON=…, in an environment that has torch and JAX, with what
# hack/device/pack.sh has put into .device. See docs/results/gpu.md.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
if [ -n "${PYTHON:-}" ] || [ ! -x "$python" ]; then
  python=${PYTHON:-python3}
  [ -d .device/wheels ] || { echo "error: .device/wheels is missing: hack/device/pack.sh makes it, on a machine with a network" >&2; exit 1; }
  "$python" - .device/wheels .device/site <<'UNPACK'
import pathlib, sys, zipfile

wheels, site = map(pathlib.Path, sys.argv[1:])
if not site.exists():
    new = site.with_name(f"{site.name}.new")
    for wheel in sorted(wheels.glob("*.whl")):
        zipfile.ZipFile(wheel).extractall(new)
    new.rename(site)
UNPACK
  kernels=runtimes/diloco/kernels
  [ -e $kernels/libkernels.so ] || cp .device/kernels/libkernels.so .device/kernels/libkernels.so.sha256 $kernels/
  export PYTHONPATH=$PWD/.device/site:$PWD/controller:$PWD/runtimes${PYTHONPATH:+:$PYTHONPATH}
fi
exec "$python" -m benchmarks.device "$@"
