#!/usr/bin/env bash
# What goes into an image, as steps that need no image builder: hack/images/install.sh COMPONENT PREFIX [option...]. See README.md beside this file.
# See docs/decisions/0107-packages-and-images.md.
set -euo pipefail
cd "$(dirname "$0")/../.."

usage() {
  cat >&2 <<'TEXT'
usage: hack/images/install.sh COMPONENT PREFIX [--root DIR] [--python PATH] [--image-python PATH] [--accelerator NAME] [--dry-run]
  COMPONENT       operator, syncer, torch or jax
  PREFIX          absolute path of the environment inside the image, such as /opt/diloco
  --root          folder that is to become the image's root; the environment is written to DIR/PREFIX. Default: this machine's own root
  --python        interpreter to install with. Default: $UV_PYTHON, else the first python3 that is new enough
  --image-python  path of the interpreter inside the image, of the same minor version. Default: the same path
  --accelerator   torch: cuda (default, what uv.lock holds: CUDA 13), cuda12, rocm or cpu; jax: cpu (default, what uv.lock holds), cuda (13),
                  cuda12 or tpu
  --dry-run       say what would be installed, and write nothing
TEXT
  exit 2
}

fail() { echo "error: $1" >&2; exit 1; }

[ $# -ge 2 ] || usage
component=$1 prefix=$2
shift 2
root="" python=${UV_PYTHON:-} image_python="" accelerator="" dry_run=""
while [ $# -gt 0 ]; do
  case $1 in
    --dry-run) dry_run=--dry-run; shift; continue ;;
    --root | --python | --image-python | --accelerator) [ $# -ge 2 ] || usage ;;
    *) echo "error: unknown option $1" >&2; usage ;;
  esac
  case $1 in
    --root) root=$(realpath -m "$2") ;;
    --python) python=$2 ;;
    --image-python) image_python=$2 ;;
    --accelerator) accelerator=$2 ;;
  esac
  shift 2
done
case $prefix in /*) ;; *) fail "PREFIX is the path inside the image and must be absolute, not $prefix" ;; esac
if [ "$root" = / ]; then root=""; fi

case $component in
  operator) extras=(--package diloco-operator) ;;
  syncer) extras=(--package diloco --extra buckets --extra tensorboard) ;;
  torch | jax) extras=(--package diloco --extra "$component" --extra data --extra buckets) ;;
  *) echo "error: no component is named $component" >&2; usage ;;
esac
case $component-${accelerator:-default} in
  *-default | torch-cuda | torch-cuda12 | torch-rocm | torch-cpu | jax-cpu | jax-cuda | jax-cuda12 | jax-tpu) ;;
  *)
    fail "--accelerator $accelerator means nothing for $component: torch takes cuda, cuda12, rocm or cpu, jax takes cpu, cuda, cuda12 or tpu, the others none"
    ;;
esac

if command -v uv >/dev/null 2>&1; then uv=$(command -v uv); else uv=$PWD/.tools/uv/bin/uv; fi
[ -x "$uv" ] || fail "uv is not installed: it is looked for in PATH and in .tools/uv, where hack/setup.sh puts it"
if [ -z "$python" ]; then python=$("$uv" python find --no-project '>=3.12'); fi

target=$root$prefix
export UV_PROJECT_ENVIRONMENT=$target UV_PYTHON=$python UV_PYTHON_DOWNLOADS=never
# A read-only root file system cannot keep bytecode that is compiled later. Copies: an image must not share files with uv's cache.
export UV_COMPILE_BYTECODE=${UV_COMPILE_BYTECODE:-1} UV_LINK_MODE=${UV_LINK_MODE:-copy}

# The locked version of one package, as NAME==VERSION.
locked() { "$uv" export --locked --quiet --no-dev "${extras[@]}" --no-emit-project --no-hashes --no-annotate --no-header | sed -n "s/ *;.*//; /^$1==/p"; }

# The index of the framework that has a build of torch which the lock does not hold; "": the lock holds it.
case $component-$accelerator in
  torch-cpu) torch_backend=cpu ;;
  torch-cuda12) torch_backend=cu126 ;;
  torch-rocm) torch_backend=rocm7.2 ;;
  *) torch_backend="" ;;
esac
left_out=()
if [ "$component" = syncer ]; then
  # The syncer writes TensorBoard's files and shows none: the web server and what only that needs would be 45 MB.
  for name in tensorboard-data-server werkzeug markupsafe markdown pillow setuptools; do left_out+=(--no-install-package "$name"); done
fi
if [ -n "$torch_backend" ]; then
  # The lock holds the build for CUDA 13 and 15 packages of its libraries, 4 GB, that no other build has a use for.
  while read -r name; do left_out+=(--no-install-package "$name"); done < <(
    "$uv" export --locked --quiet --no-dev "${extras[@]}" --no-emit-project --no-hashes --no-annotate --no-header |
      sed -n 's/^\(torch\|triton\|\(nvidia\|cuda\)-[a-z0-9-]*\)==.*/\1/p')
fi
# uv keeps what it built of a local project and looks at pyproject.toml only: without a refresh an image would get older code.
# uv's exit status is the script's: a lock that does not fit pyproject.toml stops here.
"$uv" sync $dry_run --locked --no-dev --no-editable --refresh-package diloco --refresh-package diloco-operator "${extras[@]}" "${left_out[@]}"

# What the lock cannot hold beside its default: the other builds of the same locked version. Their own packages are pinned by the framework's.
case $component-$accelerator in
  torch-cpu) extra_packages=(--torch-backend "$torch_backend" --no-deps "$(locked torch)") ;;
  torch-cuda12 | torch-rocm) extra_packages=(--torch-backend "$torch_backend" "$(locked torch)") ;;
  jax-cuda12) extra_packages=("$(locked jax | sed 's/==/[cuda12]==/')") ;;
  jax-cuda) extra_packages=("$(locked jax | sed 's/==/[cuda13]==/')") ;;
  jax-tpu) extra_packages=("$(locked jax | sed 's/==/[tpu]==/')") ;;
  *) extra_packages=() ;;
esac
if [ ${#extra_packages[@]} -gt 0 ] && [ -z "$dry_run" ]; then
  "$uv" pip install --python "$target/bin/python" "${extra_packages[@]}"
elif [ ${#extra_packages[@]} -gt 0 ]; then
  echo "then, from the framework's own index: ${extra_packages[*]}"
fi
if [ -n "$dry_run" ]; then exit 0; fi

# Containers do not activate an environment.
rm -f "$target"/bin/activate* "$target"/bin/deactivate* "$target"/bin/pydoc.bat "$target"/.gitignore "$target"/.lock "$target"/CACHEDIR.TAG

# Commands for people are not in the operator's image, nor is the package that has them.
if [ "$component" = operator ]; then rm -f "$target/bin/diloco" "$target/bin/kubectl-diloco"; fi

# The environment names its interpreter and itself by path: those of the image.
if [ -n "$root" ]; then
  grep -rlIF "$target" "$target/bin" | while read -r script; do sed -i "s|$target|$prefix|g" "$script"; done
fi
inside=${image_python:-$(readlink -f "$python" 2>/dev/null || command -v "$python")}
ln -sfn "$inside" "$target/bin/python"
sed -i "s|^home = .*|home = $(dirname "$inside")|" "$target/pyvenv.cfg"
echo "$component: $target, $(du -sh "$target" | cut -f1)"
