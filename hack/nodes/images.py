"""Images of this project as containerd takes them, made without an image builder: layers of tar, and an archive of the OCI layout.

Each is what its Dockerfile makes: an environment by hack/images/install.sh in /opt/diloco on top of a system with Python. The system is
the running distribution's smallest with the interpreter that runs this. An environment is cut into two layers, so that a change of the
project is a few megabytes.

See docs/decisions/0107-images.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from nodes import cache, machine, packages

PREFIX = "/opt/diloco"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
IMAGE_PYTHON = f"/usr/local/bin/{PYTHON}"
SITE_PACKAGES = f"{PREFIX.lstrip('/')}/lib/{PYTHON}/site-packages"
"""Relative to the root of an image."""
REGISTRY = "ghcr.io/diloco-operator"
"""Nothing is pulled from there: the nodes find the images of these names in their own store."""
VERSION = "0.1.0"
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
"""Packages with what an interpreter links to."""
_LEFT_OUT = ("test", "site-packages", "dist-packages", "ensurepip", "idlelib/idle_test", "__pycache__")
_USER = "65532:65532"
_NOTE = cache.FOLDER / "images"
"""Written and read by this module alone."""
_ENVIRONMENT = (
    f"PATH={PREFIX}/bin:/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE=1",
    "PYTHONUNBUFFERED=1",
    "HOME=/tmp",
)


class ImageError(Exception):
    """An image cannot be made here."""


@dataclass(frozen=True)
class Layer:
    """A tar file and its digest."""

    file: Path
    digest: str

    @property
    def size(self) -> int:
        return self.file.stat().st_size


@dataclass(frozen=True)
class Image:
    """Layers from the bottom up, and how a container of it starts."""

    name: str
    layers: tuple[Layer, ...]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...] = ()
    environment: tuple[str, ...] = _ENVIRONMENT
    user: str = _USER

    def config(self) -> bytes:
        config = {
            "Entrypoint": self.entrypoint,
            "Cmd": self.command,
            "Env": self.environment,
            "User": self.user,
            "WorkingDir": "/tmp",
        }
        architecture = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
        layers = {"type": "layers", "diff_ids": [layer.digest for layer in self.layers]}
        return json.dumps({"architecture": architecture, "os": "linux", "config": config, "rootfs": layers}).encode()

    def manifest(self) -> bytes:
        config = self.config()
        layers = [_descriptor("layer.v1.tar", layer.digest, layer.size) for layer in self.layers]
        return json.dumps(
            {**_typed("manifest.v1+json"), "config": _descriptor("config.v1+json", *_named(config)), "layers": layers}
        ).encode()

    @property
    def digest(self) -> str:
        """Of the manifest, which names all the rest by digest."""
        return _named(self.manifest())[0]

    def write(self, target: IO[bytes], held: Collection[str]) -> None:
        """The image as an archive, less the layers whose digests the reader holds already."""
        manifest = self.manifest()
        described = {**_descriptor("manifest.v1+json", *_named(manifest)), "annotations": {"io.containerd.image.name": self.name}}
        index = json.dumps({**_typed("index.v1+json"), "manifests": [described]}).encode()
        with tarfile.open(fileobj=target, mode="w|") as archive:
            for layer in self.layers:
                if layer.digest not in held:
                    member = tarfile.TarInfo(_blob(layer.digest))
                    member.size = layer.size
                    with layer.file.open("rb") as file:
                        archive.addfile(member, file)
            documents = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": index}
            for content in (self.config(), manifest):
                documents[_blob(_named(content)[0])] = content
            for path, content in documents.items():
                member = tarfile.TarInfo(path)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def _typed(kind: str) -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": f"application/vnd.oci.image.{kind}"}


def _descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest, "size": size}


def _named(content: bytes) -> tuple[str, int]:
    return f"sha256:{hashlib.sha256(content).hexdigest()}", len(content)


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


# --- the images of this project --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Images:
    """Everything that the nodes are given."""

    pause: Image
    operator: Image
    syncer: Image
    jax: Image
    torch: Image
    """Less torch itself, which has 5 GB of CUDA's libraries."""
    torch_packages: Path
    """What the torch image lacks: a folder for Python's path, on a read-only volume, so that no node has to unpack it."""


def provide() -> Images:
    """All of them, out of the cache where nothing changed, and noted for `provided`. Raises `ImageError` or `packages.PackageError`."""
    system, project = _system(), _project_key()
    syncer = _environment("syncer", project)

    def image(name: str, layers: Sequence[Layer], entrypoint: Sequence[str], command: Sequence[str] = ()) -> Image:
        return Image(f"{REGISTRY}/{name}:{VERSION}", (system, *layers), tuple(entrypoint), tuple(command))

    made = Images(
        pause=Image(PAUSE, (_pause(),), ("/catatonit", "-P"), environment=(), user="65535:65535"),
        operator=image("operator", _environment("operator", project), ["diloco-operator"], ["run"]),
        syncer=image("syncer", syncer, ["python", "-m", "diloco.syncer"]),
        jax=image("learner-jax", _environment("jax", project), ["python"], ["-m", "diloco.trainers.byte_lm_jax"]),
        torch=image("learner-torch", syncer, ["python"], ["-m", "diloco.trainers.byte_lm_torch"]),
        torch_packages=_torch_packages(),
    )
    _NOTE.write_bytes(pickle.dumps(made))
    return made


def provided() -> Images:
    """What `provide` made last: for the sandbox, where nothing can be fetched. Raises `ImageError`."""
    if not _NOTE.exists():
        raise ImageError("no images were made for real nodes yet: PYTHONPATH=hack python -m nodes prepare")
    noted: Images = pickle.loads(_NOTE.read_bytes())
    return noted


def _pause() -> Layer:
    def make(folder: Path) -> None:
        root = folder / "root"
        root.mkdir()
        shutil.copy2(packages.provide() / "usr/bin/catatonit", root / "catatonit")
        _pack(root, folder)
        shutil.rmtree(root)

    return _layer("pause", cache.key(packages.PACKAGES), make)


# --- the system -------------------------------------------------------------------------------------------------------
def _system() -> Layer:
    codename = machine.release()["VERSION_CODENAME"]
    return _layer("system", cache.key(codename, sys.version, _LIBRARIES, _LEFT_OUT), _make_system)


def _make_system(folder: Path) -> None:
    print(f"making the system of the images: {machine.release()['PRETTY_NAME']}, Python {platform.python_version()}", file=sys.stderr)
    root, programs = folder / "root", packages.provide()
    codename = machine.release()["VERSION_CODENAME"]
    command: list[str | Path] = [programs / "usr/sbin/debootstrap", "--variant=minbase", f"--include={','.join(_LIBRARIES)}"]
    environment = {**os.environ, "DEBOOTSTRAP_DIR": str(programs / "usr/share/debootstrap"), "PATH": packages.search_path(programs)}
    _run([*command, codename, root, _mirror(codename)], environment)
    for junk in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale", "var/log"):
        shutil.rmtree(root / junk, ignore_errors=True)
    _add_python(root)
    _pack(root, folder)
    shutil.rmtree(root)


def _mirror(codename: str) -> str:
    """Where apt takes the distribution itself from, on this machine. Raises `ImageError`."""
    listed = _run(["apt-get", "indextargets", "--format", "$(ORIGIN) $(CODENAME) $(SITE)", "Created-By: Packages"]).splitlines()
    found = [line.split()[-1] for line in listed if line.startswith(f"Debian {codename} ")]
    if not found:
        raise ImageError(f"apt knows no source of Debian {codename}: see /etc/apt/sources.list and run apt-get update")
    return found[0]


def _add_python(root: Path) -> None:
    """The interpreter that runs this, with its library, at the places where the Dockerfiles have theirs."""
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
        _run(["chroot", root, "/sbin/ldconfig"])
    needed = "import bz2, ctypes, hashlib, lzma, sqlite3, ssl, uuid, zlib"
    _run(["chroot", root, IMAGE_PYTHON, "-I", "-c", needed], {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    _run(
        ["chroot", root, IMAGE_PYTHON, "-I", "-m", "compileall", "-q", f"/usr/local/lib/{PYTHON}"],
        {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )


# --- environments -----------------------------------------------------------------------------------------------------
def _environment(component: str, project: str) -> tuple[Layer, Layer]:
    """What others wrote, and what is the project's own: layers that change seldom and always."""
    with contextlib.ExitStack() as installation:
        roots: list[Path] = []

        def root() -> Path:
            if not roots:
                roots.append(Path(installation.enter_context(tempfile.TemporaryDirectory(dir=cache.FOLDER, prefix=f"{component}-"))))
                _install(component, roots[0])
            return roots[0]

        others = _layer(f"{component}-environment", _environment_key(), lambda folder: _pack(root(), folder, leave_out=_own_files(root())))
        return others, _layer(f"{component}-project", project, lambda folder: _pack(root(), folder, only=_own_files(root())))


def _torch_packages() -> Path:
    """What torch needs, and nothing of this project, which the image has."""

    def make(folder: Path) -> None:
        _install("torch", folder)
        for path in _own_files(folder):
            (shutil.rmtree if (folder / path).is_dir() else os.unlink)(folder / path)

    _forget("volumes", "torch", keep=_environment_key())
    return cache.made_once(cache.FOLDER / "volumes" / f"torch-{_environment_key()}", make) / SITE_PACKAGES


def _install(component: str, folder: Path) -> None:
    """The component's environment into an empty folder, by the script that the Dockerfiles run."""
    print(f"installing the environment of the image {component}", file=sys.stderr)
    script, python = cache.ROOT / "hack/images/install.sh", Path(sys.executable).resolve()
    _run([script, component, PREFIX, "--root", folder, "--python", python, "--image-python", IMAGE_PYTHON])


def _environment_key() -> str:
    files = (cache.ROOT / "uv.lock", cache.ROOT / "hack/images/install.sh")
    return cache.key(cache.tree_key(*files), sys.version)


def _project_key() -> str:
    project = (cache.ROOT / "pyproject.toml", cache.ROOT / "controller/diloco_operator", cache.ROOT / "runtimes/diloco")
    return cache.key(_environment_key(), cache.tree_key(*project))


def _own_files(root: Path) -> list[str]:
    """Paths of the project's own packages and commands in an environment, relative to the root."""
    patterns = (f"{SITE_PACKAGES}/diloco*", f"{PREFIX.lstrip('/')}/bin/*diloco*")
    return sorted(str(path.relative_to(root)) for pattern in patterns for path in root.glob(pattern))


# --- layers -----------------------------------------------------------------------------------------------------------
def _layer(name: str, key: str, make: Callable[[Path], None]) -> Layer:
    _forget("layers", name, keep=key)
    folder = cache.made_once(cache.FOLDER / "layers" / f"{name}-{key}", make)
    return Layer(folder / "layer.tar", (folder / "digest").read_text())


def _forget(kind: str, name: str, *, keep: str) -> None:
    """Older ones of that name, which no run will ask for again."""
    for folder in (cache.FOLDER / kind).glob(f"{name}-*"):
        if folder.name != f"{name}-{keep}" and len(folder.name) == len(f"{name}-{keep}"):
            shutil.rmtree(folder)


def _pack(root: Path, folder: Path, *, leave_out: Sequence[str] = (), only: Sequence[str] = (".",)) -> None:
    """layer.tar and its digest into `folder`, of the files below `root`, as root's."""
    if not only:
        raise ImageError(f"nothing of this project was installed into {root}")
    file = folder / "layer.tar"
    excluded = [f"--exclude=./{path}" for path in leave_out]
    _run(["tar", "-C", root, "--numeric-owner", "--owner=0", "--group=0", "--sort=name", *excluded, "-cf", file, *only])
    with file.open("rb") as content:
        (folder / "digest").write_text(f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}")


def _run(command: Sequence[str | Path], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ImageError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout
