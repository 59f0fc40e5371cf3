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
from dataclasses import dataclass, replace
from functools import partial
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
    LocalNames,
    Sources,
    command,
    cpu_devices,
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


@dataclass(frozen=True, slots=True)
class ContainersPod:
    """The pod that a container is in."""

    context: KubeletContext
    node: SimulatedNode
    folder: PodFolder
    newest: Callable[[], Obj]
    """The pod as the API has it now, with the addresses that its status will have."""


class Container:
    """One container. `state` is what the pod's status shows of the container; `changed` is called after every change of `state`."""

    def __init__(
        self, pod: ContainersPod, spec: Mapping[str, Any], policy: str, state: ContainerState, changed: Callable[[], None]
    ) -> None:
        self.state = state
        self._context = pod.context
        self._node = pod.node
        self._folder = pod.folder
        self._pod = pod.newest
        self._spec = spec
        self._policy = policy
        self._changed = changed
        self._process: Process | None = None
        self._configured: Command | None = None
        self._names = LocalNames((), partial(pod.context.addresses.resolve, syncer=pod.context.syncer))
        self._stopping = asyncio.Event()
        self._killing = False
        self._restarts_in_a_row = 0
        """Restarts since the last long run."""
        self.logs: list[tuple[Path, int]] = []
        """For each run: its log file, and the position where the run begins. An earlier pod of the same name may have written before it."""

    async def run(self) -> None:
        """Run until the container has ended for good: it ended and is not restarted, or it was stopped."""
        while True:
            if isinstance(self.state.now, Terminated) and not await self._prepare_restart(self.state.now):
                self._update_state(final=True)
                return
            launched = await self._until_launched()
            if launched is None:
                if isinstance(self.state.now, Terminated):
                    continue  # it could not be started: the restart policy decides
                # Stopped before it ran again. Show the end of the run before: otherwise the status would say "waiting" for ever.
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
        """Kill everything in the container with SIGKILL. If not `permanently`, its node stopped and may come back: this then also waits
        until none of the container's processes is alive."""
        if permanently:
            # Before the await: a start that is under way looks at both flags once it has a process.
            self._stopping.set()
            self._killing = True
        if self._process:
            self._process.end()
            if not permanently:
                await self._process.wait_gone()

    async def signal(self, number: int) -> bool:
        """Send a signal that does not come from the kubelet. SIGTERM goes to the main process, as a kubelet sends it; any other signal goes
        to every process of the container, as if the machine failed. False if the container does not run."""
        if not (self._process and self._process.running):
            return False
        self._process.signal(number, group=number != signal.SIGTERM)
        return True

    def inside(self, words: Sequence[str]) -> Command | None:
        """The command on this machine that runs another program as if in this container. None if the container does not run.

        Args:
            words: the program and its arguments, with paths and names of the container
        """
        if self._configured is None or not (self._process and self._process.running):
            return None
        argv = _with_this_interpreter([self._names.translate(word) for word in words])
        return replace(self._configured, argv=tuple(argv), cwd=self._context.working_directory / (self._configured.cwd or ""))

    def _update_state(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)
        self._changed()

    async def _prepare_restart(self, ended: Terminated) -> bool:
        """Wait for the back-off after an end. True if the container starts again."""
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
        """Start the container once all that it refers to exists. None if it was stopped meanwhile, or if the program cannot be started
        (`state` is Terminated then). The number is the machine's count of out-of-memory kills before the start."""
        retry = _CONFIG_RETRY_FIRST
        while not self._stopping.is_set():
            try:
                return await self._launch(await self._configure())
            except (ContainerConfigError, OSError, ApiError) as error:
                self._update_state(now=Waiting("CreateContainerConfigError", str(error)))
                if not await self._completes_before_stop(self._context.sleep(retry)):
                    return None
                retry = min(retry * 2, _CONFIG_RETRY_CEILING)
        return None

    async def _configure(self) -> Command:
        pod = self._pod()
        client, namespace = self._context.client, pod["metadata"]["namespace"]
        sources = await mounted_sources(client, pod)
        claims = await _fetch(client, VOLUME_CLAIMS, namespace, _named(pod, {("persistentVolumeClaim", "claimName")}))
        folders = {name: await self._context.folder_of(claim) for name, claim in claims.items()}
        self._names = replace(self._names, mounts=self._folder.mounts(pod, self._spec, sources, folders))
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
            names=self._names,
            shorten=lambda folder: str(self._context.short_paths.of(Path(folder))),
        )

    async def _launch(self, configured: Command) -> tuple[Process, int] | None:
        """Start the program. None if it cannot be started. Raises OSError if the files of the pod cannot be written."""
        self._folder.fresh_termination_file(self._spec["name"])
        output = self._folder.log(self._spec["name"], self.state.restarts)
        begin = output.stat().st_size if output.exists() else 0
        self.logs.append((output, begin))
        self._context.log_begins[output] = begin
        # Count before the start: otherwise a kill right after it would be in the count already, and not be put down to memory.
        memory_kills = out_of_memory_kills()
        directory = self._context.working_directory / (configured.cwd or "")
        try:
            process = await self._context.supervisor.spawn(
                _with_this_interpreter(configured.argv), env=configured.env, cwd=directory, log=output
            )
        except StartFailed as error:
            now = self._context.now()
            message = f'failed to start container: exec: "{configured.argv[0]}": {error}'
            with contextlib.suppress(OSError):  # the pod's status has the message, too
                output.write_text(message + "\n")
            self._update_state(now=Terminated(_START_ERROR, "StartError", now, now, message=message))
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
        # Children may outlive the main process. If they still ran, a restart would find its ports and files taken.
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
        """Put this container's end down to an out-of-memory kill, if the machine has counted one that no other container has reported.
        The kill then counts as reported. Returns whether there was one."""
        if exited.signal != signal.SIGKILL or self._killing or not self._node.running.is_set():
            return False
        if out_of_memory_kills() <= max(kills_at_start, self._context.memory_kills_reported):
            return False
        self._context.memory_kills_reported = max(kills_at_start, self._context.memory_kills_reported) + 1
        return True

    async def _completes_before_stop(self, waiting: Awaitable[object]) -> bool:
        """Await `waiting`. False as soon as the container must stop."""

        async def wait() -> None:
            await waiting

        return await first_of(wait(), self._stopping.wait()) and not self._stopping.is_set()


async def first_of(wanted: Coroutine[Any, Any, object], other: Coroutine[Any, Any, object]) -> bool:
    """Run both until one ends, and cancel the other. True if `wanted` ended, perhaps with the other. Raises what `wanted` raised."""
    tasks = [asyncio.ensure_future(wanted), asyncio.ensure_future(other)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
        return tasks[0].done()
    finally:
        for task in tasks:
            task.cancel()
        # Await both and take their exceptions: asyncio would report one that was not taken.
        await asyncio.gather(*tasks, return_exceptions=True)


_CONFIG_MAP_NAMES = {("configMap", "name"), ("configMapRef", "name"), ("configMapKeyRef", "name")}
_SECRET_NAMES = {("secret", "secretName"), ("secret", "name"), ("secretRef", "name"), ("secretKeyRef", "name")}


def _named(pod: Obj, references: set[tuple[str, str]]) -> set[str]:
    """Every name that the pod's spec refers to. `references`: pairs of a field and the field inside it that holds the name."""
    names: set[str] = set()
    todo: list[Any] = [pod["spec"]]
    while todo:
        value = todo.pop()
        if isinstance(value, Mapping):
            names |= {value[outer][inner] for outer, inner in references if isinstance(value.get(outer), Mapping) and inner in value[outer]}
            todo += value.values()
        elif isinstance(value, list):
            todo += value
    return names


async def _fetch(client: Client, resource: Resource, namespace: str, wanted: set[str]) -> dict[str, Obj]:
    """The objects by name, without names that do not exist."""
    objects: dict[str, Obj] = {}
    for name in sorted(wanted):
        with contextlib.suppress(NotFound):
            objects[name] = await client.get(resource, namespace, name)
    return objects


async def mounted_sources(client: Client, pod: Obj) -> Sources:
    """The ConfigMaps and Secrets that a pod refers to, as far as they exist. Raises ApiError."""
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


def _with_this_interpreter(argv: Sequence[str]) -> list[str]:
    """Put this interpreter in the place of the image's."""
    program, *arguments = argv
    return [sys.executable if program in ("python", "python3") else program, *arguments]
