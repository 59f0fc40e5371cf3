"""Reads Dockerfiles, and builds those with one stage without an image builder. Each step that writes files makes one layer.

A RUN sees the files of the steps before it, in a mount namespace of its own, with this machine's network. An overlay keeps apart what it
writes. Needs root.

See docs/decisions/0144-documents.md.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from nodes import cache, oci
from nodes.oci import Image, ImageError, Layer


@dataclass
class Stage:
    """One stage: from one FROM to the next."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)
    """Instructions in order: the word, and what follows it."""

    def of(self, keyword: str) -> list[str]:
        return [text for word, text in self.steps if word == keyword]


@dataclass
class Dockerfile:
    arguments: dict[str, str]
    """Defaults of the ARGs before the first FROM."""
    stages: list[Stage]


def parse(text: str) -> Dockerfile:
    """Read a Dockerfile. Continuation lines are joined, and comments left out."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    dockerfile = Dockerfile({}, [])
    for instruction in re.split(r"(?<!\\)\n", "\n".join(lines)):
        word, _, rest = instruction.replace("\\\n", " ").strip().partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            dockerfile.stages.append(Stage(re.sub(r"\$\{(\w+)\}", lambda match: dockerfile.arguments[match[1]], base), name))
        elif word == "ARG" and not dockerfile.stages:
            name, _, default = rest.partition("=")
            dockerfile.arguments[name] = default
        elif word:
            dockerfile.stages[-1].steps.append((word, rest))
    return dockerfile


# --- building ---------------------------------------------------------------------------------------------------------
def build(name: str, text: str, context: Path, bases: Mapping[str, Image]) -> Image:
    """Build the image `name` from a Dockerfile with one stage. `bases`: name in FROM -> image.

    Raises `ImageError` for what this builder cannot do: other instructions, several stages, variables, patterns that match nothing, copied
    folders, removal of files of the base.
    """
    [stage] = parse(text).stages
    if stage.base not in bases:
        raise ImageError(f"{name}: there is no image {stage.base} here, only {', '.join(bases)}")
    image = replace(bases[stage.base], name=name)
    with ExitStack() as stack:
        files: list[_Files] = []
        for index, (word, rest) in enumerate(stage.steps):
            match word:
                case "ENV":
                    image = replace(image, environment=_with(image.environment, shlex.split(rest)))
                case "WORKDIR":
                    image = replace(image, working_directory=str(Path(image.working_directory, rest)))
                case "USER":
                    image = replace(image, user=rest)
                case "ENTRYPOINT":
                    image = replace(image, entrypoint=tuple(json.loads(rest)), command=())
                case "CMD":
                    image = replace(image, command=tuple(json.loads(rest)))
                case "COPY" | "RUN":
                    if not files:
                        files.append(_Files(Path(stack.enter_context(tempfile.TemporaryDirectory(dir=cache.FOLDER, prefix="build-")))))
                    layer = _copied(image, index, rest, context) if word == "COPY" else _run(image, index, rest, files[0])
                    image = replace(image, layers=(*image.layers, layer))
                case _:
                    raise ImageError(f"{name}: {word} is not built here")
    return image


def _with(environment: tuple[str, ...], pairs: list[str]) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in dict(pair.split("=", 1) for pair in (*environment, *pairs)).items())


def _slug(image: Image, index: int) -> str:
    return f"{re.sub('[^a-z0-9.]+', '-', image.name)}-step{index:02}"


def _key(image: Image, step: str, *more: str) -> str:
    """The cache key of a step's layer: from all layers below it, and from how the step runs."""
    return cache.key(*(layer.digest for layer in image.layers), image.environment, image.user, image.working_directory, step, *more)


def _copied(image: Image, index: int, rest: str, context: Path) -> Layer:
    *patterns, target = rest.split()
    sources = [path for pattern in patterns for path in sorted(context.glob(pattern))]
    if not sources or any(not path.is_file() for path in sources):
        raise ImageError(
            f"{image.name}: COPY {rest} names no file, or a folder; there are {sorted(path.name for path in context.iterdir())}"
        )

    def make(folder: Path) -> None:
        root = folder / "root"
        to = root / str(Path(image.working_directory, target)).lstrip("/")
        into = target.endswith(("/", ".")) or len(sources) > 1
        (to if into else to.parent).mkdir(parents=True)
        for path in sources:
            shutil.copy2(path, to / path.name if into else to)
        # Pack files only, no folders: these keep the modes that they have in the layers below.
        oci.pack(root, folder, only=[str(path.relative_to(root)) for path in sorted(root.rglob("*")) if path.is_file()])
        shutil.rmtree(root)

    return oci.layer(_slug(image, index), _key(image, f"COPY {rest}", cache.tree_key(*sources)), make)


def _run(image: Image, index: int, command: str, files: _Files) -> Layer:
    def make(folder: Path) -> None:
        files.run(image, command)
        oci.pack(files.written, folder)

    return oci.layer(_slug(image, index), _key(image, f"RUN {command}"), make)


_PASSED_ON = re.compile(r"PIP_.*|SSL_CERT_FILE|(HTTPS?|NO)_PROXY", re.IGNORECASE)
"""Variables of this machine that a RUN may need to reach a package index."""
_MACHINE_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
"""Files of this machine that a RUN may need for the same. An image builder passes on the first two as well."""

# $1 root, $2 user, the rest: the command. The mounts end with the namespace.
_ENTER = """
mount -t overlay overlay -o "$OVERLAY" "$1"
mount --rbind /dev "$1/dev"
mount -t proc proc "$1/proc"
root=$1 user=$2
shift 2
exec chroot --userspec="$user" "$root" "$@"
"""


class _Files:
    """The files of an image while it is built, below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._below, self.written, self._root, self._work, self._machine = (
            folder / name for name in ("below", "written", "root", "work", "machine")
        )
        self._below.mkdir()
        self._unpacked: list[Layer] = []
        for path in _MACHINE_FILES:
            if Path(path).exists():
                copy = self._machine / path.lstrip("/")
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, copy)

    def run(self, image: Image, command: str) -> None:
        """Run a command in the image. Then `written` has what the command wrote, until the next one runs. Raises `ImageError`."""
        for layer in image.layers[len(self._unpacked) :]:
            oci.run(["tar", "-C", self._below, "-xpf", layer.file])
            self._unpacked.append(layer)
        for folder in (self.written, self._root, self._work):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        overlay = f"lowerdir={self._machine}:{self._below},upperdir={self.written},workdir={self._work}"
        passed_on = [f"{name}={value}" for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)]
        home = image.working_directory
        inside = f"mkdir -p {shlex.quote(home)} && cd {shlex.quote(home)} && {command}"
        entered = [str(self._root), image.user or "0:0", "/usr/bin/env", "-i", *passed_on, *image.environment, "/bin/sh", "-ec", inside]
        oci.run(["unshare", "--mount", "/bin/sh", "-euc", _ENTER, "sh", *entered], {**os.environ, "OVERLAY": overlay})
        for path in self.written.rglob("*"):
            info = path.lstat()
            if stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:
                raise ImageError(f"{image.name}: RUN {command} removes /{path.relative_to(self.written)} of a layer below, not built here")
