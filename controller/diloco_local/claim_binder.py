"""Binds volume claims. Every claim is a folder of the state directory, so each can be bound at once."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

from diloco_operator.api.names import ANNOTATION_FOLDER, VOLUME_CLAIMS
from diloco_operator.kube.cache import as_it_is
from diloco_operator.kube.client import Client, Conflict, NotFound, Obj
from diloco_operator.kube.reflector import Reflector, WatchedResource

from diloco_local.state_dir import claim_folder


class ClaimBinder:
    def __init__(self, client: Client, state_dir: Path) -> None:
        self._client = client
        self._state_dir = state_dir
        self._wake = asyncio.Event()
        self._claims = Reflector(client, WatchedResource(VOLUME_CLAIMS, as_it_is), rng=random.random)
        self._claims.on_change(lambda _old, _new: self._wake.set())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._claims.run(), name="claims")
            while True:
                await self._wake.wait()
                self._wake.clear()
                for held in self._claims.cache:
                    if held.value.get("status", {}).get("phase") != "Bound":
                        with contextlib.suppress(Conflict, NotFound):  # it changed meanwhile: that change wakes this task again
                            await self._bind(held.value)

    async def _bind(self, claim: Obj) -> None:
        meta, spec = claim["metadata"], claim.get("spec", {})
        folder = str(claim_folder(self._state_dir, meta["namespace"], meta["name"]))
        if (meta.get("annotations") or {}).get(ANNOTATION_FOLDER) != folder:
            named = {**meta, "annotations": {**(meta.get("annotations") or {}), ANNOTATION_FOLDER: folder}}
            claim = await self._client.update(VOLUME_CLAIMS, {**claim, "metadata": named}, field_manager="provisioner")
        status = {
            "phase": "Bound",
            "accessModes": spec.get("accessModes", ["ReadWriteOnce"]),
            "capacity": spec.get("resources", {}).get("requests", {}),
        }
        await self._client.update(VOLUME_CLAIMS, {**claim, "status": status}, subresource="status", field_manager="provisioner")
