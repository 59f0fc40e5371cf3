"""Simulated nodes joined to a real cluster: the process kubelet, its nodes and their volumes, over a client of that cluster.

See docs/decisions/0050-local-pods-and-nodes.md.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from diloco.contract import SYNCER_PORT
from diloco_local.addresses import Addresses, Network
from diloco_local.control_plane import BackgroundTasks
from diloco_local.kubelet import Kubelet
from diloco_local.kubelet_context import KubeletContext
from diloco_local.processes import Supervisor
from diloco_local.short_paths import ShortPaths
from diloco_local.state_dir import StateDir
from diloco_operator.api.names import COMPONENT_EXPORT, LABEL_COMPONENT, LABEL_JOB
from diloco_operator.kube.client import Client, Obj

from simulated_nodes.cluster_nodes import ClusterNodes
from simulated_nodes.exec_endpoint import ExecEndpoint
from simulated_nodes.log_server import LogServer
from simulated_nodes.provisioner import Provisioner


class JoinedContext(KubeletContext):
    """Volume claims are those of the cluster."""

    provisioner: Provisioner

    async def folder_of(self, claim: Obj) -> Path:
        """Raises ContainerConfigError, ApiError."""
        return await self.provisioner.folder_of(claim)


class SimulatedNodes:
    """An async context manager. Leaving it kills every process and leaves the cluster as it is, as a power failure would. Call `leave`
    first for an orderly shutdown.

    `all_pods`: run pods that belong to no DiLoCoJob too. DaemonSets of the cluster bring such pods to every node. Here they would run as
    this user, so the default is not to run them.
    """

    def __init__(
        self, client: Client, state_dir: Path, manifests: Sequence[Obj], *, all_pods: bool = False, heartbeat: float = 10.0,
        volume_sync: float = 10.0,
    ) -> None:  # fmt: skip
        self.client = client
        self.state_dir = StateDir(state_dir)
        self._manifests = manifests
        self._all_pods = all_pods
        self._heartbeat = heartbeat
        self._volume_sync = volume_sync
        self._stack = contextlib.AsyncExitStack()
        self.kubelet: Kubelet
        self.nodes: ClusterNodes
        self.tasks: BackgroundTasks
        """`tasks.failed` becomes the exception of the first task that failed."""
        self._provisioner: Provisioner

    async def __aenter__(self) -> Self:
        """Return when every node is registered. Raises StateDirBusy, StateDirUnusable, UnsupportedPlatform, NoAddressLeft, PortTaken,
        BadNode, ForeignNodes, ApiError."""
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self.state_dir)
            server = self.state_dir.identity()
            network = Network.reserve(random.Random())
            stack.callback(network.close)
            short_paths = ShortPaths()
            stack.callback(short_paths.close)
            supervisor = await stack.enter_async_context(Supervisor())
            network.check_port(SYNCER_PORT, "the syncer of every job")
            context = JoinedContext(
                self.client, supervisor, Addresses(network.second), self.state_dir.path, Path.cwd(),
                short_paths=short_paths, volume_sync=self._volume_sync,
                admission_error=self._refuses, address_in_annotation=True,
            )  # fmt: skip
            self.kubelet = Kubelet(context)
            logs = await stack.enter_async_context(LogServer(self.kubelet.runs, ExecEndpoint(self.kubelet.program).answer))
            self.nodes = ClusterNodes(
                self.client, self.kubelet, context, self._manifests, server=server, heartbeat=self._heartbeat, listen=logs.listen
            )  # fmt: skip
            names = set(self.nodes.names)
            self._provisioner = Provisioner(self.client, self.state_dir.path, names.__contains__, server=server)
            context.provisioner = self._provisioner
            self.tasks = BackgroundTasks()
            stack.push_async_callback(self.tasks.stop)
            await self.nodes.register()
            await self._provisioner.register()
            self.tasks.run("kubelet", self.kubelet.run)
            self.tasks.run("nodes", self.nodes.run)
            self.tasks.run("provisioner", self._provisioner.run)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.aclose()

    async def leave(self) -> None:
        """End every pod within its grace period, and remove nodes and StorageClass from the cluster. Claims keep their volumes. Raises
        ApiError."""
        await self.nodes.leave()
        await self._provisioner.leave()

    def _refuses(self, pod: Obj) -> str:
        labels = pod["metadata"].get("labels") or {}
        if self._all_pods or LABEL_JOB in labels or labels.get(LABEL_COMPONENT) == COMPONENT_EXPORT:
            return ""
        return (
            "this node is simulated by `python -m simulated_nodes`, which runs only pods of DiLoCoJobs; with --all-pods it runs every pod, "
            "as processes of the user who started it"
        )
