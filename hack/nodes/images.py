"""Images of this project, made without an image builder.

Each has what its Dockerfile would make: an environment in /opt/diloco, installed by hack/images/install.sh, on top of a system with Python.
The system is the smallest of the running distribution, with the interpreter that runs this. An environment is cut into two layers, so that
a change of the project is a few megabytes. The images of docs/your-program.md are built from the page's own Dockerfiles.

See docs/decisions/0107-packages-and-images.md. See docs/decisions/0144-documents.md.
"""

from __future__ import annotations

import contextlib
import ensurepip
import os
import pickle
import platform
import shutil
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import page_files

from nodes import cache, dockerfiles, machine, oci, packages
from nodes.oci import Image, Layer

PREFIX = "/opt/diloco"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
IMAGE_PYTHON = f"/usr/local/bin/{PYTHON}"
SITE_PACKAGES = f"{PREFIX.lstrip('/')}/lib/{PYTHON}/site-packages"
"""Relative to the root of an image."""
REGISTRY = "ghcr.io/diloco-operator"
"""Nothing is pulled from this registry: the nodes find images with these names in their own store."""
VERSION: str = tomllib.loads((cache.ROOT / "pyproject.toml").read_text())["project"]["version"]
PAUSE = "localhost/pause:1"

_LIBRARIES = (
    "libssl3",
    "libffi8",
    "libsqlite3-0",
    "libbz2-1.0",
    "liblzma5",
    "zlib1g",
    "libreadline8",
    "libuuid1",
    "libexpat1",
    "libncursesw6",
)
"""Packages with the libraries that a Python interpreter links to."""
_LEFT_OUT = ("test", "site-packages", "dist-packages", "ensurepip", "idlelib/idle_test", "__pycache__")
_NOTE = cache.FOLDER / "images"
"""What `provide` made last, pickled. Only this module writes and reads it, so unpickling it is safe."""
_ENVIRONMENT = (
    f"PATH={PREFIX}/bin:/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE=1",
    "PYTHONUNBUFFERED=1",
    "HOME=/tmp",
)


# --- the images of this project --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Images:
    """All images that the nodes get."""

    pause: Image
    operator: Image
    syncer: Image
    jax: Image
    torch: Image
    """Without torch itself, which has 5 GB of CUDA's libraries."""
    torch_packages: Path
    """What the image `torch` lacks: a folder for Python's path, on a read-only volume, so that no node has to unpack it."""
    of_page: Mapping[str, Image]
    """Folder of docs/your-program.md -> the image that is built from it. The one for torch lacks torch, too."""


def provide() -> Images:
    """Make all images, out of the cache where nothing has changed, and note them for `provided`. Raises `oci.ImageError` or
    `packages.PackageError`."""
    system, project = _system(), _project_key()
    syncer = _environment("syncer", project)

    def image(name: str, layers: Sequence[Layer], entrypoint: Sequence[str], command: Sequence[str] = ()) -> Image:
        name = f"{REGISTRY}/{name}:{VERSION}"
        return Image(name, (system, *layers), tuple(entrypoint), tuple(command), _ENVIRONMENT, "65532:65532", "/tmp")

    torch = image("learner-torch", syncer, ["python"], ["-m", "diloco.trainers.byte_lm_torch"])
    made = Images(
        pause=Image(PAUSE, (_pause(),), ("/catatonit", "-P"), user="65535:65535"),
        operator=image("operator", _environment("operator", project), ["diloco-operator"], ["run"]),
        syncer=image("syncer", syncer, ["python", "-m", "diloco.syncer"]),
        jax=image("learner-jax", _environment("jax", project), ["python"], ["-m", "diloco.trainers.byte_lm_jax"]),
        torch=torch,
        torch_packages=_torch_packages(),
        of_page=_of_page(system, torch, project),
    )
    _NOTE.write_bytes(pickle.dumps(made))
    return made


def provided() -> Images:
    """What `provide` made last. The sandbox uses it, since nothing can be fetched there. Raises `oci.ImageError` if there is nothing."""
    if not _NOTE.exists():
        raise oci.ImageError("no images were made for real nodes yet: PYTHONPATH=hack python -m nodes prepare")
    noted: Images = pickle.loads(_NOTE.read_bytes())
    return noted


def _pause() -> Layer:
    def make(folder: Path) -> None:
        root = folder / "root"
        root.mkdir()
        shutil.copy2(packages.provide() / "usr/bin/catatonit", root / "catatonit")
        oci.pack(root, folder)
        shutil.rmtree(root)

    return oci.layer("pause", cache.key(packages.PACKAGES), make)


# --- the system -------------------------------------------------------------------------------------------------------
def _system() -> Layer:
    codename = machine.release()["VERSION_CODENAME"]
    return oci.layer("system", cache.key(codename, sys.version, _LIBRARIES, _LEFT_OUT), _make_system)


def _make_system(folder: Path) -> None:
    print(f"making the system of the images: {machine.release()['PRETTY_NAME']}, Python {platform.python_version()}", file=sys.stderr)
    root, programs = folder / "root", packages.provide()
    codename = machine.release()["VERSION_CODENAME"]
    command: list[str | Path] = [programs / "usr/sbin/debootstrap", "--variant=minbase", f"--include={','.join(_LIBRARIES)}"]
    environment = {**os.environ, "DEBOOTSTRAP_DIR": str(programs / "usr/share/debootstrap"), "PATH": packages.search_path(programs)}
    oci.run([*command, codename, root, _mirror(codename)], environment)
    for junk in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale", "var/log"):
        shutil.rmtree(root / junk, ignore_errors=True)
    _add_python(root)
    oci.pack(root, folder)
    shutil.rmtree(root)


def _mirror(codename: str) -> str:
    """The URL from which apt takes the distribution on this machine. Raises `oci.ImageError` if apt knows none."""
    listed = oci.run(["apt-get", "indextargets", "--format", "$(ORIGIN) $(CODENAME) $(SITE)", "Created-By: Packages"]).splitlines()
    sites = [line.split()[-1] for line in listed if line.startswith(f"Debian {codename} ")]
    if not sites:
        raise oci.ImageError(f"apt knows no source of Debian {codename}: see /etc/apt/sources.list and run apt-get update")
    return sites[0]


def _add_python(root: Path) -> None:
    """Add the interpreter that runs this, with its library, at the paths where the Dockerfiles' base image has its own."""
    library = Path(sysconfig.get_path("stdlib"))
    target = root / f"usr/local/lib/{PYTHON}"
    left_out = {library / name for name in _LEFT_OUT} | set(library.glob("config-*"))

    def ignored(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(folder) / name in left_out or name == "__pycache__"]

    shutil.copytree(library, target, ignore=ignored, symlinks=True)
    shutil.copy2(Path(sys.executable).resolve(), root / IMAGE_PYTHON.lstrip("/"))
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        name = sysconfig.get_config_var("INSTSONAME")
        shutil.copy2(Path(sysconfig.get_config_var("LIBDIR")) / name, root / "usr/local/lib" / name)
        oci.run(["chroot", root, "/sbin/ldconfig"])
    needed = "import bz2, ctypes, hashlib, lzma, sqlite3, ssl, uuid, zlib"
    oci.run(["chroot", root, IMAGE_PYTHON, "-I", "-c", needed], {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    oci.run(
        ["chroot", root, IMAGE_PYTHON, "-I", "-m", "compileall", "-q", f"/usr/local/lib/{PYTHON}"],
        {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )


# --- environments -----------------------------------------------------------------------------------------------------
def _environment(component: str, project: str) -> tuple[Layer, Layer]:
    """Two layers: the packages of others, which change seldom, and the project's own, which changes often."""
    with contextlib.ExitStack() as installation:
        roots: list[Path] = []

        def root() -> Path:
            # Installed at the first call: if the cache has both layers, nothing is installed.
            if not roots:
                roots.append(Path(installation.enter_context(tempfile.TemporaryDirectory(dir=cache.FOLDER, prefix=f"{component}-"))))
                _install(component, roots[0])
            return roots[0]

        others = oci.layer(
            f"{component}-environment", _environment_key(), lambda folder: oci.pack(root(), folder, leave_out=_own_files(root()))
        )
        return others, oci.layer(f"{component}-project", project, lambda folder: oci.pack(root(), folder, only=_own_files(root())))


def _torch_packages() -> Path:
    """The packages that the torch environment has, without this project's own, which the image has."""

    def make(folder: Path) -> None:
        _install("torch", folder)
        for path in _own_files(folder):
            own = folder / path
            if own.is_dir():
                shutil.rmtree(own)
            else:
                own.unlink()

    oci.forget("volumes", "torch", keep=_environment_key())
    return cache.made_once(cache.FOLDER / "volumes" / f"torch-{_environment_key()}", make) / SITE_PACKAGES


def _install(component: str, folder: Path) -> None:
    """Install the component's environment into an empty folder, with the script that the Dockerfiles run."""
    print(f"installing the environment of the image {component}", file=sys.stderr)
    script, python = cache.ROOT / "hack/images/install.sh", Path(sys.executable).resolve()
    oci.run([script, component, PREFIX, "--root", folder, "--python", python, "--image-python", IMAGE_PYTHON])


def _environment_key() -> str:
    files = (cache.ROOT / "uv.lock", cache.ROOT / "hack/images/install.sh")
    return cache.key(cache.tree_key(*files), sys.version)


def _project_key() -> str:
    names = ("pyproject.toml", "controller/diloco_operator", "runtimes/pyproject.toml", "runtimes/hatch_build.py", "runtimes/diloco")
    project = [cache.ROOT / name for name in names]
    return cache.key(_environment_key(), cache.tree_key(*project))


def _own_files(root: Path) -> list[str]:
    """Paths of the project's own packages and commands in an environment, relative to the root."""
    patterns = (f"{SITE_PACKAGES}/diloco*", f"{PREFIX.lstrip('/')}/bin/*diloco*")
    return sorted(str(path.relative_to(root)) for pattern in patterns for path in root.glob(pattern))


# --- images of a person who follows docs/your-program.md ----------------------------------------------------------------
PAGE = cache.ROOT / "docs" / "your-program.md"


def _of_page(system: Layer, torch: Image, project: str) -> dict[str, Image]:
    """Build the page's Dockerfiles, each with the files of its folder on the page, and with the wheels if it copies one."""
    bases = {f"registry.example.com/diloco/learner-torch:{VERSION}-cpu": torch, "python:3.13-slim": _plain_python(system)}
    folders: dict[str, dict[str, str]] = {}
    for path, text in page_files.of(PAGE).items():
        folder, _, name = path.partition("/")
        folders.setdefault(folder, {})[name] = text
    made = {}
    for folder, files in folders.items():
        with tempfile.TemporaryDirectory(dir=cache.FOLDER, prefix=f"{folder}-") as context:
            for name, text in files.items():
                Path(context, name).write_text(text)
            if "*.whl" in files["Dockerfile"]:
                for wheel in _wheels(project):
                    shutil.copy2(wheel, Path(context, wheel.name))
            made[folder] = dockerfiles.build(f"registry.example.com/{folder}:1", files["Dockerfile"], Path(context), bases)
    return made


def _wheels(project: str) -> list[Path]:
    """The wheels that `make wheel` makes."""
    oci.forget("wheels", "wheel", keep=project)

    def make(folder: Path) -> None:
        oci.run(["make", "-C", cache.ROOT, "wheel", f"WHEELS={folder}"])

    return sorted(cache.made_once(cache.FOLDER / "wheels" / f"wheel-{project}", make).glob("*.whl"))


def _plain_python(system: Layer) -> Image:
    """The system with `python` and pip, in place of Docker Hub's python:3.13-slim."""
    [pip] = Path(ensurepip.__file__).with_name("_bundled").glob("pip-*.whl")
    recipe = f"""\
FROM system
COPY {pip.name} /wheels/
RUN PYTHONPATH=/wheels/{pip.name} {PYTHON} -m pip install --no-index /wheels/{pip.name}
RUN ln -s {PYTHON} /usr/local/bin/python
"""
    base = Image("system", (system,), environment=("PATH=/usr/local/bin:/usr/bin:/bin",))
    return dockerfiles.build("python:3.13-slim", recipe, pip.parent, {"system": base})
