"""A pod's volumes as folders under the state directory.

What a pod owns (`pods/<uid>`) goes with the pod; a claim's folder (`volumes/<namespace>/<claim>`) stays, so that the next control
plane on this state directory finds what the last one's syncer has written.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from diloco_operator.kube.client import Obj
from diloco_operator.local.environment import ConfigError, Mount, Sources, field_value
from diloco_operator.local.pod_status import MESSAGE_BYTES

TERMINATION_LOG = "/dev/termination-log"
_FALLBACK_LINES, _FALLBACK_BYTES = 80, 2048


class PodFolder:
    """Where one pod's volumes and termination messages are."""

    def __init__(self, state_dir: Path, pod: Obj) -> None:
        metadata = pod["metadata"]
        self._state_dir = state_dir
        self._namespace: str = metadata["namespace"]
        self._folder = state_dir / "pods" / str(metadata["uid"])
        self._logs: Path = state_dir / "logs" / self._namespace / str(metadata["name"])

    def log(self, container: str, restarts: int) -> Path:
        """The log of one run of a container; its folder exists."""
        self._logs.mkdir(parents=True, exist_ok=True)
        return self._logs / f"{container}-{restarts}.log"

    def mounts(self, pod: Obj, container: Mapping[str, Any], sources: Sources, claims: Iterable[str]) -> list[Mount]:
        """Bring the volumes of a container up to date. Raises ConfigError for what is missing or not supported; OSError."""
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
        found: list[Mount] = []
        for mount in container.get("volumeMounts") or ():
            volume = volumes.get(mount["name"])
            if volume is None:
                raise ConfigError(f"volumeMount {mount['name']!r} of container {container['name']!r}: the pod has no such volume")
            folder = self._materialise(pod, volume, sources, set(claims))
            local = folder / mount["subPath"] if mount.get("subPath") else folder
            if mount.get("subPath") and not local.exists():
                local.mkdir(parents=True)
            found.append(Mount(mount["mountPath"], str(local)))
        found.append(Mount(container.get("terminationMessagePath") or TERMINATION_LOG, str(self._termination_file(container["name"]))))
        return found

    def fresh_termination_file(self, container: str) -> None:
        """An empty one for the next run."""
        file = self._termination_file(container)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")

    def termination_message(self, container: Mapping[str, Any], log: Path, exit_code: int) -> str:
        """What the container left: at most 4096 bytes of its termination message, or, if it asked for that, the end of its log."""
        try:
            with self._termination_file(container["name"]).open("rb") as file:
                message = file.read(MESSAGE_BYTES)
        except FileNotFoundError:
            message = b""
        if not message and exit_code != 0 and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            message = b"\n".join(tail(log, _FALLBACK_BYTES).splitlines()[-_FALLBACK_LINES:])
        return message.decode(errors="replace")

    def remove(self) -> None:
        """Delete what belongs to the pod alone. Logs and claims stay."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _termination_file(self, container: str) -> Path:
        return self._folder / "termination" / container

    def _materialise(self, pod: Obj, volume: Mapping[str, Any], sources: Sources, claims: set[str]) -> Path:
        folder = self._folder / "volumes" / str(volume["name"])
        if claim := volume.get("persistentVolumeClaim"):
            if claim["claimName"] not in claims:
                raise ConfigError(f'persistentvolumeclaim "{claim["claimName"]}" not found')
            folder = self._state_dir / "volumes" / self._namespace / str(claim["claimName"])
            folder.mkdir(parents=True, exist_ok=True)
        elif host_path := volume.get("hostPath"):
            return Path(host_path["path"])
        elif "emptyDir" in volume:
            folder.mkdir(parents=True, exist_ok=True)
        else:
            _fill(folder, _files(pod, volume, sources))
        return folder


def _files(pod: Obj, volume: Mapping[str, Any], sources: Sources) -> dict[str, str]:
    files: dict[str, str] = {}
    known = False
    for kind, name_field, data in (("configMap", "name", sources.config_maps), ("secret", "secretName", sources.secrets)):
        if source := volume.get(kind):
            known = True
            name = source.get(name_field) or source.get("name")
            found = data.get(name)
            if found is None and not source.get("optional"):
                raise ConfigError(f"{kind.lower()} {name!r} not found")
            files |= _selected(found or {}, source, f"{kind.lower()} {name!r}")
    if source := volume.get("downwardAPI"):
        known = True
        files |= {item["path"]: field_value(pod, item["fieldRef"]["fieldPath"]) for item in source.get("items") or ()}
    if source := volume.get("projected"):
        known = True
        for part in source.get("sources") or ():
            files |= _files(pod, {"name": volume["name"], **part}, sources)
    if not known:
        kinds = ", ".join(key for key in volume if key != "name") or "without a source"
        raise ConfigError(
            f"volume {volume['name']!r} ({kinds}) is not supported by the embedded control plane; "
            "use configMap, secret, downwardAPI, projected, emptyDir, hostPath or persistentVolumeClaim"
        )
    return files


def _selected(data: Mapping[str, str], source: Mapping[str, Any], what: str) -> dict[str, str]:
    items = source.get("items")
    if not items:
        return dict(data)
    missing = [item["key"] for item in items if item["key"] not in data]
    if missing and not source.get("optional"):
        raise ConfigError(f"{what} has no key {', '.join(missing)}")
    return {item["path"]: data[item["key"]] for item in items if item["key"] in data}


def _fill(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.new")
        fresh.write_text(text)
        os.replace(fresh, target)  # noqa: PTH105 - a reader sees the old or the new file, never half of one
    for old in folder.rglob("*"):
        if old.is_file() and str(old.relative_to(folder)) not in files:
            old.unlink()


def tail(file: Path, limit: int) -> bytes:
    """The last `limit` bytes of a file; nothing if there is none."""
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(0, size - limit))
            return opened.read()
    except FileNotFoundError:
        return b""
