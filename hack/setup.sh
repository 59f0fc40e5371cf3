#!/usr/bin/env bash
# Makes .venv from uv.lock. Brings uv from PyPI when it is missing; finds a Python that is new enough, or says that there is none.
set -euo pipefail
cd "$(dirname "$0")/.."

find_uv() {
  if command -v uv >/dev/null 2>&1; then command -v uv; return; fi
  local uv=.tools/uv/bin/uv
  if [ ! -x "$uv" ]; then
    echo "uv is not installed: installing it from PyPI into .tools/uv" >&2
    if ! python3 -m venv .tools/uv >&2; then
      echo "error: python3 cannot make a virtual environment. Install uv (pip install uv) or the package python3-venv, then try again." >&2
      exit 1
    fi
    .tools/uv/bin/pip install --quiet --disable-pip-version-check 'uv>=0.9' >&2
  fi
  echo "$uv"
}

new_enough() { [ -x "$1" ] && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; }

# pyenv's shims answer for versions that they then refuse to run, which makes `uv python find` fail: fall back to its versions folder.
find_python() {
  local found
  if [ -n "${UV_PYTHON:-}" ]; then echo "$UV_PYTHON"; return; fi
  if found=$("$1" python find --no-project '>=3.12' 2>/dev/null) && new_enough "$found"; then echo "$found"; return; fi
  for found in $(ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python3 2>/dev/null | sort -rV); do
    if new_enough "$found"; then echo "$found"; return; fi
  done
  if "$1" python install 3.13 >&2 2>/dev/null && found=$("$1" python find --no-project '>=3.12' 2>/dev/null) && new_enough "$found"; then
    echo "$found"; return
  fi
  echo "error: no Python 3.12 or newer found (looked at PATH, uv's own and ${PYENV_ROOT:-$HOME/.pyenv}/versions), and uv could not download one." >&2
  echo "       Install Python 3.12 or newer, or point UV_PYTHON at its executable." >&2
  exit 1
}

uv=$(find_uv)
UV_PYTHON=$(find_python "$uv")
export UV_PYTHON
echo "python: $UV_PYTHON"
sync=("$uv" sync --locked --all-packages --all-extras)
count=$("${sync[@]}" --dry-run 2>&1 | sed -n 's/^Would download \([0-9]*\) package.*/\1/p') || count=  # what is wrong, the sync below says
if [ "${count:-0}" -gt 2 ]; then  # two are this checkout's own, which it builds
  echo "downloading $count packages of uv.lock: all together are 3.5 GB from PyPI, and 6.8 GB of disk." >&2
  echo "  2.2 GB of it are CUDA libraries. PyPI's torch for Linux does not start without them, also where no GPU is." >&2
fi
"${sync[@]}" --quiet
# uv does not see that what it built into the checkout was removed, or damaged.
.venv/bin/python -c 'import diloco.kernels' 2>/dev/null || "${sync[@]}" --quiet --reinstall-package diloco
