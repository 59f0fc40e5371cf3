#!/usr/bin/env bash
# Makes .device, which git ignores: what a machine with a GPU, Linux on x86-64, Python 3.12, torch, JAX and no network lacks to run
# hack/device/run.sh. That are wheels from uv.lock, the compiled loops, and the name of this commit. Says its size.
# See docs/results/gpu.md.
set -euo pipefail
cd "$(dirname "$0")/../.."
uv=$(command -v uv || echo "$PWD/.tools/uv/bin/uv")
[ -x "$uv" ] || { echo "error: uv is not installed: it is looked for in PATH and in .tools/uv, where hack/setup.sh puts it" >&2; exit 1; }
most=$((40 << 20))

# Such a machine has these: torch, transformers and lightning need them. Their versions do not matter here.
there="numpy networkx safetensors aiohttp aiohappyeyeballs aiosignal attrs frozenlist idna multidict propcache yarl pygments pyyaml"
# Nothing here imports these: they are of kubernetes' client that blocks, and of a command of common-expression-language.
unused="certifi charset-normalizer oauthlib requests requests-oauthlib urllib3 websocket-client prompt-toolkit wcwidth typer annotated-doc shellingham tzdata"

rm -rf .device/wheels .device/kernels .device/site
mkdir -p .device/wheels .device/kernels
left_out=()
for package in $there $unused; do left_out+=(--no-emit-package "$package"); done
"$uv" export --quiet --frozen --no-dev --no-emit-workspace --package diloco-operator "${left_out[@]}" --output-file .device/requirements.txt
platforms=(--platform manylinux2014_x86_64)
for minor in 17 24 26 27 28 31 34; do platforms+=(--platform "manylinux_2_${minor}_x86_64"); done
"$uv" tool run --quiet pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: --python-version 3.12 \
  --implementation cp --abi cp312 --abi abi3 --abi none "${platforms[@]}" --requirement .device/requirements.txt --dest .device/wheels
# The loops are compiled for any Python and glibc 2.17 or newer, each for three levels of the processor.
cp runtimes/diloco/kernels/libkernels.so runtimes/diloco/kernels/libkernels.so.sha256 .device/kernels/
git describe --always --dirty --abbrev=12 --exclude='*' > .device/commit

pack=$(du --apparent-size --bytes --summarize .device/wheels .device/kernels | awk '{ bytes += $1 } END { print bytes }')
tree=$(git ls-files --cached --others --exclude-standard -z | du --apparent-size --bytes --files0-from=- | awk '{ bytes += $1 } END { print bytes }')
echo ".device: $(ls .device/wheels | wc -l) wheels, $((pack >> 10)) KiB; with the files that git knows, $((tree >> 10)) KiB, $(((pack + tree) >> 10)) KiB of at most $((most >> 10))"
if [ $((pack + tree)) -gt $most ]; then echo "error: that is too much: leave out what the machine has" >&2; exit 1; fi
