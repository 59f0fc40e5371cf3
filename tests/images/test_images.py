"""The images, as far as they can be tried without an image builder: what the Dockerfiles say, and what their steps make."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.documents import ROOT
from nodes import dockerfiles
from nodes.dockerfiles import Dockerfile, Stage

pytestmark = pytest.mark.xdist_group("images")  # what the Dockerfiles' steps make takes half a minute, once

FILES = {
    "operator": ROOT / "controller" / "Dockerfile",
    "syncer": ROOT / "runtimes" / "syncer.Dockerfile",
    "torch": ROOT / "runtimes" / "torch.Dockerfile",
    "jax": ROOT / "runtimes" / "jax.Dockerfile",
}
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
WRITE_AN_EVENT_FILE = """
import pathlib, tempfile
from diloco.syncer.reporting.event_file import EventFile
with tempfile.TemporaryDirectory() as folder:
    file = EventFile(pathlib.Path(folder), 1, 0.0)
    file.write(1, 0.0, {"loss": 1.0})
    file.flush()
    file.close()
    print(file.path.name)
"""
NOT_IN_IMAGES = ["diloco_local", "diloco_cli", "diloco_client"]
PINNED = re.compile(r"[a-z0-9./-]+:[a-z0-9.-]*\d+\.\d+\.\d+[a-z0-9.-]*(@sha256:[0-9a-f]{64})?")


def parse(path: Path) -> Dockerfile:
    return dockerfiles.parse(path.read_text())


@pytest.fixture(params=sorted(FILES))
def component(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def copied(stage: Stage) -> list[str]:
    """Paths of the repository that a stage copies."""
    return [source for text in stage.of("COPY") if not text.startswith("--from") for source in text.split()[:-1]]


def context(component: str, folder: Path) -> Path:
    """What the build stage sees: the paths that it copies, as far as .dockerignore lets them through."""
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for source in copied(parse(FILES[component]).stages[1]):
        assert source in allowed, f".dockerignore keeps {source} from the build"
    for text in parse(FILES[component]).stages[1].of("COPY"):
        *sources, target = text.split()
        for source in () if text.startswith("--from") else sources:
            at = folder / target / (Path(source).name if target.endswith("/") else "")
            at.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, at, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.so.sha256"))
            else:
                shutil.copy(ROOT / source, at)
    return folder


def install(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    uv = f"{ROOT / '.tools' / 'uv' / 'bin'}:{os.environ.get('PATH', '')}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "VIRTUAL_ENV"))}
    command = [str(folder / "hack" / "images" / "install.sh"), *args]
    # What a test need not wait for: compiling every module, and copies where links do.
    quick = {"UV_COMPILE_BYTECODE": "0", "UV_LINK_MODE": "hardlink"}
    return subprocess.run(command, env={**environment, **quick, "PATH": uv}, capture_output=True, text=True, check=False)


INTERPRETER = str(Path(sys.executable).resolve())


# --- what the Dockerfiles say -----------------------------------------------------------------------------------------
def test_every_base_image_is_pinned_and_the_same_in_all_files(component: str) -> None:
    read = parse(FILES[component])
    assert [stage.name for stage in read.stages] == ["uv", "build", ""]
    for stage in read.stages:
        assert PINNED.fullmatch(stage.base), stage.base
    assert read.arguments == parse(FILES["operator"]).arguments
    # The interpreter that builds is the one that runs: the environment's packages are made for it.
    assert read.stages[1].base == read.stages[2].base


def test_the_last_stage_holds_the_environment_and_nothing_that_builds(component: str) -> None:
    last = parse(FILES[component]).stages[-1]
    assert last.of("COPY") == ["--from=build /opt/diloco /opt/diloco"]
    assert last.of("ADD") == []
    removal, *installs = last.of("RUN")
    assert removal.startswith("rm -rf ")
    assert "/site-packages/pip*" in removal
    # torch compiles when a program runs.
    assert installs == (
        ["apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*"] if component == "torch" else []
    )
    assert last.of("USER") == ["65532:65532"]
    # Exec form: the program is process 1 and gets SIGTERM.
    (entrypoint,) = last.of("ENTRYPOINT")
    assert json.loads(entrypoint)[0] in ("diloco-operator", "python")
    words = [word for word, _ in last.steps]
    assert words.index("USER") > max(index for index, word in enumerate(words) if word == "RUN")
    environment = dict(pair.split("=", 1) for text in last.of("ENV") for pair in text.split())
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"
    assert environment["HOME"] == "/tmp"
    assert environment["PATH"].startswith("/opt/diloco/bin:")


@pytest.mark.parametrize("component", ["torch", "jax"])
def test_a_learners_image_finds_the_driver_that_gke_mounts(component: str) -> None:
    environment = dict(pair.split("=", 1) for text in parse(FILES[component]).stages[-1].of("ENV") for pair in text.split())
    assert environment["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib64"
    assert "/usr/local/nvidia/bin" in environment["PATH"].split(":")


def test_what_is_copied_is_there_and_is_what_the_project_is_built_from(component: str) -> None:
    sources = copied(parse(FILES[component]).stages[1])
    assert all((ROOT / source).exists() for source in sources)
    for folder in ("", "runtimes/") if component == "operator" else ("runtimes/",):
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())
        packages = [folder + name for name in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
        wanted = {*packages} - {f"controller/{name}" for name in NOT_IN_IMAGES}
        assert {*wanted, folder + project["project"]["readme"], "LICENSE", "pyproject.toml", "uv.lock"} <= set(sources)
    assert component == "operator" or not [source for source in sources if source.startswith("controller")]


def test_the_build_stage_runs_the_shared_steps(component: str) -> None:
    (command,) = parse(FILES[component]).stages[1].of("RUN")
    assert f"hack/images/install.sh {component} /opt/diloco --python /usr/local/bin/python3.13" in command


def test_nothing_else_of_a_checkout_reaches_an_image() -> None:
    first, *others = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert first == "*"
    everything = {source for path in FILES.values() for source in copied(parse(path).stages[1])}
    assert {line[1:] for line in others if line.startswith("!")} == everything


# --- what the steps make ----------------------------------------------------------------------------------------------
def packages(output: str) -> set[str]:
    return set(re.findall(r"^ \+ ([a-z0-9-]+)", output, re.MULTILINE))


@pytest.mark.parametrize(
    ("component", "accelerator", "holds", "lacks"),
    [
        ("operator", "", {"kubernetes", "cryptography", "prometheus-client"}, {"torch", "jax", "pytest", "uv"}),
        (
            "syncer",
            "",
            {"grpcio", "numpy", "obstore", "tensorboard"},
            {"kubernetes", "aiohttp", "torch", "jax", "pytest", "pillow", "setuptools"},
        ),
        ("torch", "cuda", {"torch", "nvidia-cublas", "triton", "obstore"}, {"kubernetes", "jax", "pytest"}),
        *(
            ("torch", other, {"sympy"}, {"torch", "nvidia-cublas", "cuda-toolkit", "triton", "kubernetes"})
            for other in ("cpu", "cuda12", "rocm")
        ),
        ("jax", "cpu", {"jax", "jaxlib", "optax", "obstore"}, {"torch", "kubernetes", "pytest"}),
    ],
)
def test_each_image_gets_its_own_packages_from_the_lock(
    component: str, accelerator: str, holds: set[str], lacks: set[str], tmp_path: Path
) -> None:
    folder = context(component, tmp_path / "context")
    options = ["--accelerator", accelerator] if accelerator else []
    done = install(folder, component, "/opt/diloco", "--root", str(tmp_path / "root"), "--python", INTERPRETER, "--dry-run", *options)
    assert done.returncode == 0, done.stderr
    found = packages(done.stderr)
    own = {"diloco", "diloco-operator"} if component == "operator" else {"diloco"}
    assert holds | own <= found
    assert not (lacks | ({"diloco-operator"} - own)) & found


@pytest.mark.parametrize(
    ("component", "accelerator", "says"),
    [
        ("torch", "cpu", "--torch-backend cpu --no-deps torch==2."),
        ("torch", "cuda12", "--torch-backend cu126 torch==2."),
        ("torch", "rocm", "--torch-backend rocm7.2 torch==2."),
        ("jax", "tpu", "jax[tpu]=="),
        ("jax", "cuda", "jax[cuda13]=="),
        ("jax", "cuda12", "jax[cuda12]=="),
    ],
)
def test_what_the_lock_does_not_hold_comes_at_the_locked_version(component: str, accelerator: str, says: str, tmp_path: Path) -> None:
    folder = context(component, tmp_path / "context")
    done = install(
        folder,
        component,
        "/opt/diloco",
        "--root",
        str(tmp_path / "root"),
        "--python",
        INTERPRETER,
        "--accelerator",
        accelerator,
        "--dry-run",
    )
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert says in last
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    (version,) = (package["version"] for package in lock["package"] if package["name"] == component)
    assert last.endswith(f"=={version}")


def test_wrong_arguments_are_refused_with_what_is_right(tmp_path: Path) -> None:
    folder = context("operator", tmp_path / "context")
    for args, says in [
        (["syncer", "opt"], "must be absolute"),
        (["learner", "/opt/diloco"], "no component is named learner"),
        (["syncer", "/opt/diloco", "--accelerator", "cuda"], "torch takes cuda, cuda12, rocm or cpu"),
        (["syncer", "/opt/diloco", "--rot", "x"], "unknown option --rot"),
    ]:
        done = install(folder, *args)
        assert done.returncode != 0
        assert says in done.stderr


def test_nothing_is_resolved_anew_while_an_image_is_built(tmp_path: Path) -> None:
    folder = context("syncer", tmp_path / "context")
    (folder / "uv.lock").unlink()
    done = install(folder, "syncer", "/opt/diloco", "--root", str(tmp_path / "root"), "--python", INTERPRETER, "--dry-run")
    assert done.returncode != 0
    assert "Unable to find lockfile" in done.stderr


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Root folders of the operator's and the syncer's image, installed from the context that their Dockerfile copies."""
    made = {}
    for component in ("operator", "syncer"):
        folder = context(component, tmp_path_factory.mktemp(f"{component}-context"))
        made[component] = tmp_path_factory.mktemp(f"{component}-root")
        done = install(folder, component, "/opt/diloco", "--root", str(made[component]), "--python", INTERPRETER)
        assert done.returncode == 0, done.stderr
    return made


def files(root: Path) -> Iterator[tuple[str, float]]:
    for path in sorted(root.rglob("*")):
        yield str(path.relative_to(root)), path.lstat().st_mtime


def run(root: Path, home: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """As in a container: the image's environment variables and nothing else."""
    environment = {
        "PATH": f"{root}/opt/diloco/bin:/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "HOME": str(home),
    }
    return subprocess.run(
        [f"{root}/opt/diloco/bin/{command[0]}", *command[1:]], env=environment, cwd=home, capture_output=True, text=True, check=False
    )


@pytest.mark.full
def test_programs_start_from_the_image_and_write_nothing_into_it(roots: dict[str, Path], tmp_path: Path) -> None:
    """So that a read-only root file system does them no harm."""
    for component, command, code, says in [
        (
            "operator",
            ("python", "-m", "diloco_operator.program.main", "version"),
            0,
            f"diloco-operator {PROJECT['project']['version']}",
        ),
        # What simulates a cluster and the commands for people are in no image.
        ("operator", ("python", "-c", f"import importlib.util as i; print(*map(i.find_spec, {NOT_IN_IMAGES}))"), 0, "None None"),
        # Without its environment the syncer says so: 64 is contract.Exit.BAD_CONTRACT.
        ("syncer", ("python", "-m", "diloco.syncer"), 64, "DILOCO_"),
        # The loops in C were compiled by the steps: the build's context holds none.
        ("syncer", ("python", "-c", "from diloco import kernels; print('level', kernels.LEVEL)"), 0, "level "),
        # Event files need TensorBoard's package, and nothing of what the image leaves out of it.
        ("syncer", ("python", "-c", WRITE_AN_EVENT_FILE), 0, "events.out.tfevents.00000001.t1"),
    ]:
        root = roots[component]
        before = list(files(root))
        done = run(root, tmp_path, *command)
        assert done.returncode == code, done.stderr
        assert says in done.stdout + done.stderr
        assert list(files(root)) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_an_environment_knows_no_path_of_the_machine_that_made_it(roots: dict[str, Path]) -> None:
    for component, root in roots.items():
        scripts = [path for path in (root / "opt" / "diloco" / "bin").iterdir() if not path.is_symlink()]
        texts = {path.name: path.read_text() for path in [*scripts, root / "opt" / "diloco" / "pyvenv.cfg"]}
        assert not [name for name, text in texts.items() if str(root) in text]
        assert ("diloco-operator" in texts) == (component == "operator")
        if component == "operator":
            assert texts["diloco-operator"].startswith("#!/opt/diloco/bin/python\n")


@pytest.mark.full
def test_an_image_holds_no_tool_that_installs_or_builds(roots: dict[str, Path]) -> None:
    for root in roots.values():
        names = {path.name.partition("-")[0] for path in (root / "opt" / "diloco" / "lib").glob("python3.*/site-packages/*")}
        assert "diloco" in names
        assert ("diloco_operator" in names) == (root == roots["operator"])
        assert not names & {"pip", "setuptools", "wheel", "hatchling", "ziglang", "uv", "pytest"}


@pytest.mark.full
def test_only_the_operators_image_can_talk_to_an_api_server(roots: dict[str, Path]) -> None:
    for component, root in roots.items():
        names = {path.name for path in (root / "opt" / "diloco" / "lib").glob("python3.*/site-packages/*")}
        assert ("kubernetes" in names) == (component == "operator")
