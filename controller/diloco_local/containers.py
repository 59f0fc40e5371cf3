"""Runs one container of a pod: configure, start, wait for its end, restart as the policy says.

See docs/decisions/0050-local-pods-and-nodes.md.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diloco.contract import ENV_RELATIVE_SPEED
from diloco_operator.api.names import CONFIG_MAPS, LEARNER_CONTAINER, SECRETS, VOLUME_CLAIMS
from diloco_operator.kube.client import ApiError, Client, NotFound, Obj, Resource

from diloco_local.compilation_cache import cache_variables
from diloco_local.environment import (
    LIBRARY_THREADS,
    LOOPBACK_ONLY,
    NO_ACCELERATORS,
    Command,
    ContainerConfigError,
    Mount,
    Sources,
    command,
    cpu_devices,
    translate,
)
from diloco_local.kubelet_context import KubeletContext, SimulatedNode, out_of_memory_kills
from diloco_local.pod_status import (
    RESTART_FORGOTTEN_AFTER,
    ContainerState,
    Running,
    Terminated,
    Waiting,
    ended_reason,
    restart_delay,
    restarts_again,
)
from diloco_local.processes import Exited, Process, StartFailed
from diloco_local.volumes import PodFolder

log = logging.getLogger(__name__)

_CONFIG_RETRY_FIRST, _CONFIG_RETRY_CEILING = 1.0, 10.0
_START_ERROR = 128
"""Exit status that containerd reports for a program that cannot be started."""


class Container:
    """One container. `state` is what the pod's status shows of it; `changed` is called after every change of it."""

    def __init__(
        self, context: KubeletContext, node: SimulatedNode, folder: PodFolder, pod: Callable[[], Obj], spec: Mapping[str, Any], policy: str,
        state: ContainerState, changed: Callable[[], None],
    ) -> None:  # fmt: skip
        self.state = state
        self._context = context
        self._node = node
        self._folder = folder
        self._pod = pod
        self._spec = spec
        self._policy = policy
        self._changed = changed
        self._process: Process | None = None
        self._configured: Command | None = None
        self._mounts: Sequence[Mount] = ()
        self._stopping = asyncio.Event()
        self._killing = False
        self._restarts_in_a_row = 0
        """Restarts since the last long run."""
        self.logs: list[tuple[Path, int]] = []
        """For each run here: its file, and the position where it begins in it. An earlier pod of the same name may have used that file."""

    async def run(self) -> None:
        """Run until it has ended for good: it ended and is not restarted, or it was stopped."""
        while True:
            if isinstance(self.state.now, Terminated) and not await self._prepare_restart(self.state.now):
                self._update_state(final=True)
                return
            launched = await self._until_launched()
            if launched is None:
                if isinstance(self.state.now, Terminated):
                    continue  # it could not be started: the restart policy decides
                # Stopped before it ran again: its end is that of the run before, and "waiting" would never change.
                if self.state.last:
                    self._update_state(now=self.state.last, last=None, final=True)
                return
            await self._until_gone(*launched)

    async def stop(self) -> None:
        """Send SIGTERM to the main process, and never restart it."""
        self._stopping.set()
        if self._process:
            self._process.signal(signal.SIGTERM)

    async def kill(self, *, permanently: bool = True) -> None:
        """Kill everything in it with SIGKILL. Not `for_good`: its node stopped and may come back; returns when none of its processes is
        alive."""
        if permanently:
            # Before the await: a start that is under way looks at them once it has a process.
            self._stopping.set()
            self._killing = True
        if self._process:
            self._process.end()
            if not permanently:
                await self._process.wait_gone()

    async def signal(self, number: int) -> bool:
        """Send a signal from outside the kubelet: SIGTERM to the main process, as a kubelet does, any other to every process of the
        container, as a machine that fails or stops does. False: it does not run."""
        if not (self._process and self._process.running):
            return False
        self._process.signal(number, group=number != signal.SIGTERM)
        return True

    def inside(self, words: Sequence[str]) -> Command | None:
        """Return what another program in this container is here; None: the container does not run."""
        if self._configured is None or not (self._process and self._process.running):
            return None
        argv = _here([translate(word, self._mounts, self._context.addresses.resolve) for word in words])
        return replace(self._configured, argv=tuple(argv), cwd=self._context.working_directory / (self._configured.cwd or ""))

    def _update_state(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)
        self._changed()

    async def _prepare_restart(self, ended: Terminated) -> bool:
        """Wait for the back-off after an end. True: the container starts again."""
        if self._stopping.is_set() or not restarts_again(self._policy, ended.exit_code):
            return False
        if ended.started_at and (ended.finished_at - ended.started_at).total_seconds() >= RESTART_FORGOTTEN_AFTER:
            self._restarts_in_a_row = 0
        delay = restart_delay(self._restarts_in_a_row)
        metadata = self._pod()["metadata"]
        message = f"back-off {delay:.0f}s restarting failed container={self._spec['name']} pod={metadata['name']}_{metadata['namespace']}"
        self._update_state(last=ended, now=Waiting("CrashLoopBackOff", message) if delay else Waiting("ContainerCreating"))
        restart = await self._completes_before_stop(self._context.sleep(delay))
        if not restart or not await self._completes_before_stop(self._node.running.wait()):
            self._update_state(now=ended, last=None)
            return False
        self._restarts_in_a_row += 1
        self._update_state(restarts=self.state.restarts + 1)
        return True

    async def _until_launched(self) -> tuple[Process, int] | None:
        """Start it once all that it needs exists. None: it was stopped; or the program cannot be started, and `state` is Terminated."""
        retry = _CONFIG_RETRY_FIRST
        while not self._stopping.is_set():
            try:
                configured = await self._configure()
            except (ContainerConfigError, OSError, ApiError) as error:
                self._update_state(now=Waiting("CreateContainerConfigError", str(error)))
                if not await self._completes_before_stop(self._context.sleep(retry)):
                    return None
                retry = min(retry * 2, _CONFIG_RETRY_CEILING)
                continue
            return await self._launch(configured)
        return None

    async def _configure(self) -> Command:
        pod = self._pod()
        client, namespace = self._context.client, pod["metadata"]["namespace"]
        sources = await mounted_sources(client, pod)
        claims = await _fetch(client, VOLUME_CLAIMS, namespace, _named(pod, {("persistentVolumeClaim", "claimName")}))
        folders = {name: await self._context.folder_of(claim) for name, claim in claims.items()}
        mounts = self._folder.mounts(pod, self._spec, sources, folders)
        self._mounts = mounts
        speed = (
            {ENV_RELATIVE_SPEED: self._node.relative_speed} if self._node.relative_speed and self._spec["name"] == LEARNER_CONTAINER else {}
        )
        compiled = cache_variables(self._context.state_dir, self._context.environment)
        return command(
            pod,
            self._spec,
            base={**self._context.environment, "HOSTNAME": pod["spec"].get("hostname") or pod["metadata"]["name"]},
            defaults={
                **LIBRARY_THREADS,
                **NO_ACCELERATORS,
                **LOOPBACK_ONLY,
                **cpu_devices(self._spec),
                **compiled,
                **speed,
                **self._context.chosen_environment,
            },
            sources=sources,
            mounts=mounts,
            resolve=self._context.addresses.resolve,
            shorten=lambda folder: str(self._context.short_paths.of(Path(folder))),
        )

    async def _launch(self, configured: Command) -> tuple[Process, int] | None:
        self._folder.fresh_termination_file(self._spec["name"])
        output = self._folder.log(self._spec["name"], self.state.restarts)
        self.logs.append((output, output.stat().st_size if output.exists() else 0))
        # Before the start: a kill right after it would be in the count already, and explain nothing.
        memory_kills = out_of_memory_kills()
        directory = self._context.working_directory / (configured.cwd or "")
        try:
            process = await self._context.supervisor.spawn(_here(configured.argv), env=configured.env, cwd=directory, log=output)
        except StartFailed as refused:
            now = self._context.now()
            what = f'failed to start container: exec: "{configured.argv[0]}": {refused}'
            output.write_text(what + "\n")
            self._update_state(now=Terminated(_START_ERROR, "StartError", now, now, message=what))
            return None
        self._process, self._configured = process, configured
        self._update_state(now=Running(self._context.now(), f"local://{process.mark.rstrip('/')}"))
        # `stop`, `kill` or the node's end may have come during the start, when there was no process to signal.
        if self._killing or not self._node.running.is_set():
            process.end()
        elif self._stopping.is_set():
            process.signal(signal.SIGTERM)
        return process, memory_kills

    async def _until_gone(self, process: Process, memory_kills: int) -> None:
        running = self.state.now
        assert isinstance(running, Running)
        exited = await process.wait()
        finished = self._context.now()
        # Children may outlive the main process: a restart beside them would find its ports and files taken.
        await process.wait_gone()
        self._process = None
        ended = Terminated(
            exited.code,
            ended_reason(exited.code, out_of_memory=self._count_memory_kill(exited, memory_kills)),
            running.started_at,
            finished,
            message=self._folder.termination_message(self._spec, *self.logs[-1], exited.code),
            signal=exited.signal,
            container_id=running.container_id,
        )
        self._update_state(now=ended)

    def _count_memory_kill(self, exited: Exited, kills_at_start: int) -> bool:
        """Put the end down to memory that ran out, if the machine has counted a kill for that which is no other container's. True: it is
        so."""
        if exited.signal != signal.SIGKILL or self._killing or not self._node.running.is_set():
            return False
        if out_of_memory_kills() <= max(kills_at_start, self._context.memory_kills_reported):
            return False
        self._context.memory_kills_reported = max(kills_at_start, self._context.memory_kills_reported) + 1
        return True

    async def _completes_before_stop(self, waiting: Awaitable[object]) -> bool:
        """Await it; False as soon as the container must stop."""

        async def wait() -> None:
            await waiting

        return await first_of(wait(), self._stopping.wait()) and not self._stopping.is_set()


async def first_of(wanted: Coroutine[Any, Any, object], other: Coroutine[Any, Any, object]) -> bool:
    """Run both until one ends, and cancel the other. True: the first ended (perhaps both). Its exception is raised."""
    tasks = [asyncio.ensure_future(wanted), asyncio.ensure_future(other)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
        return tasks[0].done()
    finally:
        for task in tasks:
            task.cancel()
        # Until they have ended, with what they raise: asyncio would report an exception that was never taken.
        await asyncio.gather(*tasks, return_exceptions=True)


_CONFIG_MAP_NAMES = {("configMap", "name"), ("configMapRef", "name"), ("configMapKeyRef", "name")}
_SECRET_NAMES = {("secret", "secretName"), ("secret", "name"), ("secretRef", "name"), ("secretKeyRef", "name")}


def _named(pod: Obj, references: set[tuple[str, str]]) -> set[str]:
    """Return every name that the pod's spec refers to by one of these pairs (field, field in it)."""
    found: set[str] = set()
    todo: list[Any] = [pod["spec"]]
    while todo:
        value = todo.pop()
        if isinstance(value, Mapping):
            found |= {value[outer][inner] for outer, inner in references if isinstance(value.get(outer), Mapping) and inner in value[outer]}
            todo += value.values()
        elif isinstance(value, list):
            todo += value
    return found


async def _fetch(client: Client, resource: Resource, namespace: str, wanted: set[str]) -> dict[str, Obj]:
    """Return those of the objects that exist."""
    found: dict[str, Obj] = {}
    for name in sorted(wanted):
        with contextlib.suppress(NotFound):
            found[name] = await client.get(resource, namespace, name)
    return found


async def mounted_sources(client: Client, pod: Obj) -> Sources:
    """Return the ConfigMaps and Secrets that a pod refers to, as far as they exist. Raises ApiError."""
    namespace = pod["metadata"]["namespace"]
    config_maps = await _fetch(client, CONFIG_MAPS, namespace, _named(pod, _CONFIG_MAP_NAMES))
    secrets = await _fetch(client, SECRETS, namespace, _named(pod, _SECRET_NAMES))
    return Sources(
        {name: _plain(obj.get("data")) | _decoded(obj.get("binaryData")) for name, obj in config_maps.items()},
        {name: _decoded(obj.get("data")) | _plain(obj.get("stringData")) for name, obj in secrets.items()},
    )


def _plain(data: Mapping[str, str] | None) -> dict[str, bytes]:
    return {key: value.encode() for key, value in (data or {}).items()}


def _decoded(data: Mapping[str, str] | None) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in (data or {}).items()}


def _here(argv: Sequence[str]) -> list[str]:
    """Put this interpreter in the place of an image's."""
    program, *arguments = argv
    return [sys.executable if program in ("python", "python3") else program, *arguments]
