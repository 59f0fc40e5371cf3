"""Volumes for claims in a real cluster: folders of the state directory, offered as a StorageClass.

The cluster does the rest of the binding: its scheduler chooses a node (WaitForFirstConsumer), and its volume controller binds. A volume
fits all simulated nodes of this command, since they are all this machine, and no other node.

See docs/decisions/0050-local-pods-and-nodes.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from diloco_local.environment import ContainerConfigError
from diloco_local.kubelet_context import WATCHES
from diloco_operator.api.names import DEFAULT_CLASS, PERSISTENT_VOLUMES, STORAGE_CLASSES, VOLUME_CLAIMS
from diloco_operator.kube.cache import as_it_is
from diloco_operator.kube.client import AlreadyExists, ApiError, Client, Conflict, NotFound, Obj
from diloco_operator.kube.reflector import Reflector, WatchedResource

from simulated_nodes.names import LABEL_SERVER, PROVISIONER, STORAGE_CLASS

log = logging.getLogger(__name__)

_SELECTED_NODE = "volume.kubernetes.io/selected-node"
_RETRY_SECONDS = 1.0


def storage_class(server: str, *, default: bool) -> Obj:
    return {
        "metadata": {
            "name": STORAGE_CLASS,
            "labels": {LABEL_SERVER: server},
            "annotations": {DEFAULT_CLASS: "true"} if default else {},
        },
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": [{"matchLabelExpressions": [{"key": LABEL_SERVER, "values": [server]}]}],
    }


def volume(claim: Obj, folder: Path, server: str) -> Obj:
    """Return the PersistentVolume for a claim. Pure."""
    metadata, spec = claim["metadata"], claim["spec"]
    here = {"matchExpressions": [{"key": LABEL_SERVER, "operator": "In", "values": [server]}]}
    return {
        "metadata": {
            "name": volume_name(claim),
            "labels": {LABEL_SERVER: server},
            "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER},
        },
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "volumeMode": "Filesystem",
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"],
            },
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": spec["storageClassName"],
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [here]}},
        },
    }  # fmt: skip


def volume_name(claim: Obj) -> str:
    return f"pvc-{claim['metadata']['uid']}"


class Provisioner:
    """`is_own_node` says whether this command serves a node."""

    def __init__(self, client: Client, state_dir: Path, is_own_node: Callable[[str], bool], *, server: str) -> None:
        self._client = client
        self._folders = state_dir / "volumes"
        self._is_own_node = is_own_node
        self._server = server
        self._class_uid = ""
        self._wake = asyncio.Event()
        self._claims = Reflector(client, WatchedResource(VOLUME_CLAIMS, as_it_is), rng=random.random, timeouts=WATCHES)
        self._volumes = Reflector(
            client,
            WatchedResource(PERSISTENT_VOLUMES, as_it_is, label_selector=f"{LABEL_SERVER}={server}"),
            rng=random.random,
            timeouts=WATCHES,
        )
        for reflector in (self._claims, self._volumes):
            reflector.on_change(lambda _old, _new: self._wake.set())

    async def register(self) -> None:
        """Create the StorageClass, as the default if the cluster has none. Raises ApiError."""
        classes = (await self._client.list(STORAGE_CLASSES)).items
        default = not any((each["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true" for each in classes)
        there = next((each for each in classes if each["metadata"]["name"] == STORAGE_CLASS), None)
        if there is None:
            there = await self._client.create(STORAGE_CLASSES, storage_class(self._server, default=default))
        if (there["metadata"].get("labels") or {}).get(LABEL_SERVER) == self._server:
            self._class_uid = there["metadata"]["uid"]
        else:
            log.warning("StorageClass %s belongs to another command: only nodes of that command get new volumes", STORAGE_CLASS)

    async def leave(self) -> None:
        """Delete the StorageClass. Volumes stay, so that the next run finds their content."""
        if self._class_uid:
            with contextlib.suppress(NotFound, Conflict):
                await self._client.delete(STORAGE_CLASSES, "", STORAGE_CLASS, uid=self._class_uid)

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._claims.run(), name="claims")
            group.create_task(self._volumes.run(), name="volumes")
            await self._claims.wait_synced()
            await self._volumes.wait_synced()
            while True:
                self._wake.clear()
                try:
                    await self._sync()
                except ApiError as error:
                    log.warning("provisioning volumes: %s", error)
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                await self._wake.wait()

    async def folder_of(self, claim: Obj) -> Path:
        """Return the folder of a claim. Raises ContainerConfigError as long as it has none on this machine; ApiError."""
        name = claim["metadata"]["name"]
        bound_to = claim["spec"].get("volumeName")
        if not bound_to:
            raise ContainerConfigError(f'persistentvolumeclaim "{name}" is not bound yet')
        try:
            spec = (await self._client.get(PERSISTENT_VOLUMES, "", bound_to))["spec"]
        except NotFound:
            raise ContainerConfigError(f'persistentvolume "{bound_to}" of claim "{name}" not found') from None
        source = spec.get("local") or spec.get("hostPath")
        if not source:
            raise ContainerConfigError(
                f'persistentvolume "{bound_to}" is not a folder of this machine; use the StorageClass {STORAGE_CLASS} for simulated nodes'
            )
        return Path(source["path"])

    async def _sync(self) -> None:
        provided = {held.name for held in self._volumes.cache}
        for held in self._claims.cache:
            if not held.deleting and self._should_provision(held.value) and volume_name(held.value) not in provided:
                await self._provision(held.value)
        for held in self._volumes.cache:
            if not held.deleting and held.value.get("status", {}).get("phase") == "Released":
                await self._reclaim(held.value)

    def _should_provision(self, claim: Obj) -> bool:
        spec, annotations = claim["spec"], claim["metadata"].get("annotations") or {}
        return (
            spec.get("storageClassName") == STORAGE_CLASS
            and not spec.get("volumeName")
            and self._is_own_node(annotations.get(_SELECTED_NODE, ""))
        )

    async def _provision(self, claim: Obj) -> None:
        folder = self._folder(claim["metadata"]["namespace"], volume_name(claim))
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(AlreadyExists):
            await self._client.create(PERSISTENT_VOLUMES, volume(claim, folder, self._server))
            log.info("claim %s/%s: %s", claim["metadata"]["namespace"], claim["metadata"]["name"], folder)

    async def _reclaim(self, released: Obj) -> None:
        """Delete the folder of a claim that was deleted: only one that this command has created, under the name that it uses."""
        spec, name = released["spec"], released["metadata"]["name"]
        folder = self._folder(spec["claimRef"]["namespace"], name)
        if spec.get("persistentVolumeReclaimPolicy") != "Delete" or spec.get("local", {}).get("path") != str(folder):
            return
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        with contextlib.suppress(NotFound, Conflict):
            await self._client.delete(PERSISTENT_VOLUMES, "", name, uid=released["metadata"]["uid"])
            log.info("volume %s was released and deleted", name)

    def _folder(self, namespace: str, name: str) -> Path:
        return self._folders / namespace / name
