"""A pod's volumes as folders under the state directory.

The pod's own folder (`pods/<uid>`) is deleted with the pod. `KubeletContext.folder_of` chooses the folder of a claim, which stays. Files
of ConfigMaps, Secrets and similar volumes are laid out as a kubelet does it: in a folder behind the link `..data`. The link is replaced
when a file changes, so that all files change at once.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diloco.contract import TERMINATION_LOG
from diloco_operator.kube.client import Obj

from diloco_local.environment import ContainerConfigError, Mount, Sources, field_value
from diloco_local.pod_status import MESSAGE_BYTES

_FALLBACK_LINES, _FALLBACK_BYTES = 80, 2048
_DATA = "..data"
CHANGING = ("configMap", "secret", "downwardAPI", "projected")
"""Kinds of volumes whose files are updated while the pod runs."""


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    mode: int = 0o644


class PodFolder:
    """The volumes and termination messages of one pod."""

    def __init__(self, state_dir: Path, pod: Obj) -> None:
        metadata = pod["metadata"]
        self._state_dir = state_dir
        self._namespace: str = metadata["namespace"]
        self._folder = state_dir / "pods" / str(metadata["uid"])
        self._logs: Path = state_dir / "logs" / self._namespace / str(metadata["name"])

    @property
    def path(self) -> Path:
        """The pod's own folder, deleted with the pod."""
        return self._folder

    def log(self, container: str, restarts: int) -> Path:
        """The log file of one run of a container. Its folder is created."""
        self._logs.mkdir(parents=True, exist_ok=True)
        return self._logs / f"{container}-{restarts}.log"

    def mounts(self, pod: Obj, container: Mapping[str, Any], sources: Sources, claims: Mapping[str, Path]) -> list[Mount]:
        """Create or update the volumes of a container. `claims`: the folder of each claim that exists. Raises OSError, and
        ContainerConfigError if a source is missing or not supported."""
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
        mounts: list[Mount] = []
        for mount in container.get("volumeMounts") or ():
            volume = volumes.get(mount["name"])
            if volume is None:
                raise ContainerConfigError(f"volumeMount {mount['name']!r} of container {container['name']!r}: the pod has no such volume")
            folder = self._materialise(pod, volume, sources, claims)
            local = folder / mount["subPath"] if mount.get("subPath") else folder
            # A kubelet creates this folder. A program that relies on that would fail on simulated nodes alone.
            if mount.get("subPath") and not local.exists():
                local.mkdir(parents=True)
            mounts.append(Mount(mount["mountPath"], str(local)))
        mounts.append(Mount(container.get("terminationMessagePath") or TERMINATION_LOG, str(self._termination_file(container["name"]))))
        return mounts

    def refresh(self, pod: Obj, sources: Sources) -> None:
        """Update the files of a running pod. Raises OSError, and ContainerConfigError if a source is missing, after updating the rest."""
        missing: ContainerConfigError | None = None
        for volume in pod["spec"].get("volumes") or ():
            folder = self._volume(volume)
            if folder.is_dir() and any(kind in volume for kind in CHANGING):
                try:
                    publish(folder, _files(pod, volume, sources))
                except ContainerConfigError as error:
                    missing = error
        if missing:
            raise missing

    def fresh_termination_file(self, container: str) -> None:
        """Make an empty file for the next run."""
        file = self._termination_file(container)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")

    def termination_message(self, container: Mapping[str, Any], log: Path, start: int, exit_code: int) -> str:
        """At most 4096 bytes of the container's termination message. If that is empty and the container asks for it, the end of its log,
        which begins at `start`."""
        try:
            with self._termination_file(container["name"]).open("rb") as file:
                # Read no more: the file may be as large as the program likes, and the API refuses long messages.
                message = file.read(MESSAGE_BYTES)
        except OSError:  # not there, or a program has made it a directory
            message = b""
        if not message and exit_code != 0 and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            message = b"\n".join(tail(log, _FALLBACK_BYTES, start).splitlines()[-_FALLBACK_LINES:])
        return message.decode(errors="replace")

    def remove(self) -> None:
        """Delete the pod's own folder. Logs and claims stay."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _termination_file(self, container: str) -> Path:
        return self._folder / "termination" / container

    def _volume(self, volume: Mapping[str, Any]) -> Path:
        return self._folder / "volumes" / str(volume["name"])

    def _materialise(self, pod: Obj, volume: Mapping[str, Any], sources: Sources, claims: Mapping[str, Path]) -> Path:
        folder = self._volume(volume)
        if claim := volume.get("persistentVolumeClaim"):
            if claim["claimName"] not in claims:
                raise ContainerConfigError(f'persistentvolumeclaim "{claim["claimName"]}" not found')
            folder = claims[claim["claimName"]]
            folder.mkdir(parents=True, exist_ok=True)
        elif host_path := volume.get("hostPath"):
            return Path(host_path["path"])
        elif "emptyDir" in volume:
            folder.mkdir(parents=True, exist_ok=True)
        else:
            publish(folder, _files(pod, volume, sources))
        return folder


def _files(pod: Obj, volume: Mapping[str, Any], sources: Sources) -> dict[str, File]:
    files: dict[str, File] = {}
    known = False
    for kind, name_field, data in (("configMap", "name", sources.config_maps), ("secret", "secretName", sources.secrets)):
        if source := volume.get(kind):
            known = True
            name = source.get(name_field) or source.get("name")
            content_by_key = data.get(name)
            if content_by_key is None and not source.get("optional"):
                raise ContainerConfigError(f"{kind.lower()} {name!r} not found")
            files |= _selected(content_by_key or {}, source, f"{kind.lower()} {name!r}")
    if source := volume.get("downwardAPI"):
        known = True
        items = source.get("items") or ()
        files |= {item["path"]: File(field_value(pod, item["fieldRef"]["fieldPath"]).encode(), _mode(item, source)) for item in items}
    if source := volume.get("projected"):
        known = True
        default = {"defaultMode": source["defaultMode"]} if "defaultMode" in source else {}
        for part in source.get("sources") or ():
            files |= _files(pod, {"name": volume["name"], **{kind: {**default, **content} for kind, content in part.items()}}, sources)
    if not known:
        kinds = ", ".join(key for key in volume if key != "name") or "without a source"
        raise ContainerConfigError(
            f"volume {volume['name']!r} ({kinds}) is not supported by simulated nodes; "
            "use configMap, secret, downwardAPI, projected, emptyDir, hostPath or persistentVolumeClaim"
        )
    return files


def _selected(data: Mapping[str, bytes], source: Mapping[str, Any], what: str) -> dict[str, File]:
    items = source.get("items")
    if not items:
        return {key: File(content, _mode({}, source)) for key, content in data.items()}
    missing = [item["key"] for item in items if item["key"] not in data]
    if missing and not source.get("optional"):
        raise ContainerConfigError(f"{what} has no key {', '.join(missing)}")
    return {item["path"]: File(data[item["key"]], _mode(item, source)) for item in items if item["key"] in data}


def _mode(item: Mapping[str, Any], source: Mapping[str, Any]) -> int:
    return int(item.get("mode", source.get("defaultMode", 0o644))) & 0o777


def publish(folder: Path, files: Mapping[str, File]) -> None:
    """Make `folder` contain exactly these files (path in the folder -> file). A reader that opens `..data` once sees either the old or
    the new files, never a mixture. Does nothing if nothing changed."""
    link = folder / _DATA
    if link.exists() and _read(link) == files:
        return
    folder.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix="..", dir=folder))
    for path, file in files.items():
        target = fresh / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.content)
        target.chmod(file.mode)
    pending = folder / f"{_DATA}_tmp"
    pending.unlink(missing_ok=True)
    pending.symlink_to(fresh.name)
    # Replace by one rename: between an unlink and a new link a reader would find no files.
    pending.replace(link)
    # After the link is replaced: before, the names of new files would lead nowhere.
    shown = {path.partition("/")[0] for path in files}
    for name in shown:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"{_DATA}/{name}")
    for entry in list(folder.iterdir()):
        if entry.name.startswith(".."):
            # The old folder goes last: readers opened files in it before the rename. Names are compared, because `mkdtemp` returns a path
            # without "..", which `folder` may have.
            if entry.name not in (link.name, fresh.name):
                shutil.rmtree(entry)
        elif entry.name not in shown:
            entry.unlink()


def _read(folder: Path) -> dict[str, File]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): File(path.read_bytes(), path.stat().st_mode & 0o777) for path in files}


def tail(file: Path, limit: int, start: int = 0) -> bytes:
    """The last `limit` bytes of a file, but none before position `start`. Empty if it cannot be read."""
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(start, size - limit))
            return opened.read()
    except OSError:
        return b""
