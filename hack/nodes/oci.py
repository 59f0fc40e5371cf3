"""Makes images without an image builder: layers are tar files in the cache, and containerd imports an archive in the OCI layout.

See docs/decisions/0107-packages-and-images.md.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from nodes import cache


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
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    """NAME=VALUE."""
    user: str = ""
    """USER:GROUP. "" means root."""
    working_directory: str = "/"

    def config(self) -> bytes:
        config = {
            "Entrypoint": self.entrypoint,
            "Cmd": self.command,
            "Env": self.environment,
            "User": self.user,
            "WorkingDir": self.working_directory,
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
        """The digest of the manifest, which names config and layers by their digests."""
        return _named(self.manifest())[0]

    def write(self, target: IO[bytes], held: Collection[str]) -> None:
        """Write the image as an archive. Layers with a digest in `held` are left out: the reader has them already."""
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


# --- layers -----------------------------------------------------------------------------------------------------------
def layer(name: str, key: str, make: Callable[[Path], None]) -> Layer:
    """The layer with this name and key. If the cache lacks it, `make` packs it into a folder (see `pack`). Layers of the same name with
    other keys are removed."""
    forget("layers", name, keep=key)
    folder = cache.made_once(cache.FOLDER / "layers" / f"{name}-{key}", make)
    return Layer(folder / "layer.tar", (folder / "digest").read_text())


def forget(kind: str, name: str, *, keep: str) -> None:
    """Remove the entries of this name with other keys than `keep`: no run will ask for them again."""
    for folder in (cache.FOLDER / kind).glob(f"{name}-*"):
        # All keys have one length: a longer name is another thing whose name begins with this one.
        if folder.name != f"{name}-{keep}" and len(folder.name) == len(f"{name}-{keep}"):
            shutil.rmtree(folder)


def pack(root: Path, folder: Path, *, leave_out: Sequence[str] = (), only: Sequence[str] = (".",)) -> None:
    """Pack the files below `root`, owned by root, into `folder`/layer.tar, and write its digest beside it. Paths are relative to `root`."""
    if not only:
        raise ImageError(f"nothing of this project was installed into {root}")
    file = folder / "layer.tar"
    excluded = [f"--exclude=./{path}" for path in leave_out]
    run(["tar", "-C", root, "--numeric-owner", "--owner=0", "--group=0", "--sort=name", *excluded, "-cf", file, *only])
    with file.open("rb") as content:
        (folder / "digest").write_text(f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}")


def run(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return what it prints. Raises `ImageError`, with the end of its output, unless it ends with status 0."""
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ImageError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout
