"""One run of `diloco up`: it creates the jobs, follows their status, drains on request, and reports the result.

See docs/decisions/0052-drain-and-retry.md.
See docs/decisions/0138-job-state.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import random
import shlex
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diloco.wording import plural
from diloco_local.control_plane import Listeners, LocalControlPlane, OtherFleet, ProgramOptions
from diloco_local.faults import Fault, Fired
from diloco_local.links import UNLIMITED, LinkShape
from diloco_local.pod_logs import LocalPodLogs
from diloco_local.processes import Priority
from diloco_local.record.file import RecordWriter
from diloco_local.record.lines import Line as RecordLine
from diloco_local.record.recorder import Recorder
from diloco_local.state_dir import claim_folder
from diloco_local.volumes import tail
from diloco_operator.api.names import CONFIG_MAPS, DILOCO_JOBS, EVENTS, UP_MANAGER, volume_claim_name
from diloco_operator.api.status import ModelStatus
from diloco_operator.kube.cache import CachedObject, as_it_is
from diloco_operator.kube.client import Invalid, NotFound, Obj
from diloco_operator.kube.reflector import Reflector, WatchedResource

from diloco_cli.diloco.run_report import recorded
from diloco_cli.diloco.view import UntilClosed, View
from diloco_cli.view_model import JobView, Line, Speeds, changes, event_line, failed_attempts, remember, with_speeds

if TYPE_CHECKING:
    from diloco_cli.dashboard.server import Dashboard

log = logging.getLogger(__name__)

_LOG_LINES, _LOG_BYTES = 10, 4096


class Ending(enum.Enum):
    """How the run ended."""

    COMPLETE = "Complete"
    PROGRAM_FAILED = "ProgramFailed"
    """The jobs are complete, and a program failed once its job was done."""
    FAILED = "Failed"
    TIMED_OUT = "TimedOut"
    INTERRUPTED = "Interrupted"

    @property
    def exit_status(self) -> int:
        return {
            Ending.COMPLETE: 0, Ending.PROGRAM_FAILED: 1, Ending.FAILED: 1, Ending.TIMED_OUT: 1, Ending.INTERRUPTED: 130
        }[self]  # fmt: skip


@dataclass(frozen=True, slots=True)
class UpOptions:
    jobs: Sequence[Obj]
    nodes: Sequence[Obj]
    state_dir: Path
    faults: Sequence[Fault] = ()
    timeout: float | None = None
    """Seconds, or None if there is no limit."""
    resume_command: str = ""
    """The command that continues this run."""
    recorded_command: str = ""
    """The same for the record, without values of variables."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for all programs."""
    priority: Priority = Priority.LOW
    report: bool = True
    """Whether to write a report of the record."""
    config_maps: Sequence[Obj] = ()
    """ConfigMaps that pods of the jobs mount."""
    dashboard: bool = False
    """Whether to serve the dashboard while the jobs run."""
    clusters: Mapping[str, Sequence[Obj]] = field(default_factory=dict)
    """Name of another cluster -> its nodes."""
    links: Mapping[str, LinkShape] = field(default_factory=dict)
    """Name of another cluster -> its link to the syncers."""
    syncer_link: LinkShape = UNLIMITED
    """What these links share at the syncers' end."""
    on_locked: Callable[[], None] = lambda: None
    """Called once, when this run has locked the state directory. It may raise StateDirUnusable."""


class Run:
    """Runs the jobs and shows everything on `view`. Raises what `LocalControlPlane` raises at its start, and ApiError if the API rejects a
    job."""

    def __init__(self, options: UpOptions, view: View) -> None:
        self._options = options
        self._view = UntilClosed(view, self._interrupt)
        self._known: dict[tuple[str, str], JobView] = {}
        self._objects: dict[tuple[str, str], Obj] = {}
        self._changed = asyncio.Event()
        self._interrupts = 0
        self._timed_out = False
        self._interrupted = asyncio.Event()
        self._killed = asyncio.Event()
        self._missing_conditions: dict[str, str] = {}
        self._speeds: Speeds = {}
        self._record = RecordWriter(options.state_dir)
        self._recorder = Recorder(self._write, time.time, time.monotonic)
        self._served: Dashboard | None = None
        self._plane: LocalControlPlane

    async def __call__(self) -> Ending:
        """Return once no process runs any more and the view has shown the result."""
        try:
            return await self._run()
        finally:
            self._view.stop()

    async def _run(self) -> Ending:
        options = self._options
        namespaces = list(dict.fromkeys(str(job["metadata"]["namespace"]) for job in options.jobs))
        self._plane = LocalControlPlane(
            options.state_dir,
            options.nodes,
            faults=options.faults,
            programs=ProgramOptions(options.environment, options.priority),
            listeners=Listeners(self._on_fault, self._recorder.report),
            clusters={name: OtherFleet(nodes, namespaces, options.links[name]) for name, nodes in options.clusters.items()},
            syncer_link=options.syncer_link,
        )
        with self._signals(), contextlib.closing(self._record):
            async with self._plane:
                options.on_locked()
                self._recorder.began(options.recorded_command)
                # Before the jobs: a pod that does not find its ConfigMap waits a second or more before it looks again.
                for config_map in self._options.config_maps:
                    await self._plane.client.create(CONFIG_MAPS, config_map, field_manager=UP_MANAGER)
                for job in self._options.jobs:
                    await self._plane.client.create(DILOCO_JOBS, job, field_manager=UP_MANAGER)
                async with self._dashboard():
                    ending = await self._follow()
                for key, obj in self._objects.items():
                    self._recorder.object(key, obj)
                self._recorder.ended(ending.value)
        self._end(ending)
        return ending

    @contextlib.asynccontextmanager
    async def _dashboard(self) -> AsyncIterator[None]:
        if not self._options.dashboard:
            yield
            return
        from diloco_cli.dashboard.server import serving

        async with serving(self._plane.client, LocalPodLogs(self._plane.kubelet.runs), "") as self._served:
            self._view.note(f"Dashboard: {self._served.url} (Ctrl-C drains and stops)")
            yield

    def _write(self, *lines: RecordLine) -> None:
        self._record.write(*lines)
        if self._served is not None:
            self._served.source.add(*lines)

    async def _follow(self) -> Ending:
        client = self._plane.client
        jobs = Reflector(client, WatchedResource(DILOCO_JOBS, as_it_is), rng=random.random)
        events = Reflector(client, WatchedResource(EVENTS, as_it_is), rng=random.random)
        jobs.on_change(self._on_job)
        events.on_change(self._on_event)
        self._view.start()
        following = [asyncio.create_task(reflector.run()) for reflector in (jobs, events)]
        try:
            return await self._until_end(following)
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    async def _until_end(self, following: Sequence[asyncio.Task[None]]) -> Ending:
        # Lengths are compared because `all` of nothing is true: before the first event no job is known.
        over = self._wait_for(lambda: len(self._known) == len(self._options.jobs) and all(view.over for view in self._known.values()))
        try:
            async with asyncio.timeout(self._options.timeout):
                await self._first(over, self._interrupted.wait(), following)
        except TimeoutError:
            self._timed_out = True
            self._missing_conditions = {view.name: view.missing_condition() for view in self._known.values()}  # draining changes it
            await self._drain("time is up", "Ctrl-C", following)
            return Ending.TIMED_OUT
        if self._interrupted.is_set():
            await self._drain("interrupted", "Ctrl-C again", following)
            return Ending.INTERRUPTED
        await self._programs_end(following)
        if self._interrupted.is_set():
            return Ending.INTERRUPTED
        if any(not view.complete for view in self._known.values()):
            return Ending.FAILED
        return Ending.PROGRAM_FAILED if any(view.failed_at_end for view in self._known.values()) else Ending.COMPLETE

    async def _programs_end(self, following: Sequence[asyncio.Task[None]]) -> None:
        """Wait for the programs of jobs that are over, which may still write something. The operator limits how long they may take."""
        if running := sum(map(self._plane.programs, self._known)):
            self._view.note(f"{plural(running, 'program')} of what is over still {'runs' if running == 1 else 'run'}; Ctrl-C kills at once")
        await self._first(self._plane.programs_ended(self._known), self._interrupted.wait(), following)
        if self._interrupted.is_set():
            self._view.note("killed")
            return
        # The status now says how the programs ended, but the watch may not have brought it yet.
        written: dict[tuple[str, str], Obj] = {}
        for key in self._known:
            with contextlib.suppress(NotFound):  # the operator deletes a job that is over for longer than its ttlSecondsAfterFinished
                written[key] = await self._plane.client.get(DILOCO_JOBS, *key)
        seen = self._wait_for(lambda: all(_version(self._objects[key]) >= _version(job) for key, job in written.items()))
        await self._first(seen, self._interrupted.wait(), following)

    async def _first(
        self, wanted: Coroutine[Any, Any, Any], other: Coroutine[Any, Any, Any], following: Sequence[asyncio.Task[None]]
    ) -> None:
        """Wait until `wanted` or `other` is done. Raises if the control plane or a watch fails meanwhile."""
        waiting = [asyncio.create_task(wanted), asyncio.create_task(other)]
        try:
            # If a watch or the control plane failed, no change would ever come, and the command would hang.
            done, _ = await asyncio.wait([*waiting, *following, self._plane.failed], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _drain(self, why: str, killing: str, following: Sequence[asyncio.Task[None]]) -> None:
        """Suspend every job: learners hand back their state, the syncer writes a snapshot. `killing` names the keys that kill at once."""
        self._view.note(f"{why}: draining: learners end first, then the syncer writes a snapshot; {killing} kills at once")
        for view in self._known.values():
            if not view.over:
                with contextlib.suppress(NotFound, Invalid):  # a job that has just ended takes no change
                    await self._plane.client.patch(
                        DILOCO_JOBS,
                        view.namespace,
                        view.name,
                        {"spec": {"suspend": True}},
                        field_manager=UP_MANAGER,
                    )
        is_suspended = self._wait_for(lambda: all(view.over or view.is_suspended for view in self._known.values()))
        await self._first(is_suspended, self._killed.wait(), following)
        if self._options.clusters and not self._killed.is_set():  # learners in other clusters hand back their state, too
            await self._first(self._plane.programs_ended(self._known), self._killed.wait(), following)
        if self._killed.is_set():
            self._view.note("killed")

    async def _wait_for(self, holds: Callable[[], bool]) -> None:
        while not holds():
            # There must be no await between `holds()` and `clear()`: a change in between would be lost.
            self._changed.clear()
            await self._changed.wait()

    def _on_job(self, _old: CachedObject[Obj] | None, new: CachedObject[Obj] | None) -> None:
        if new is None:
            return
        view = JobView.of(new.value)
        old = self._known.get(new.key)
        self._known[new.key], self._objects[new.key] = view, new.value
        self._speeds = remember(self._speeds, view)
        self._recorder.status(new.key, view.state.value if view.state is not None else "", view.status)
        if old is None or old.state is not view.state:
            self._recorder.object(new.key, new.value)
        for line in changes(old, view):
            self._view.line(line)
        for unit, pod in failed_attempts(old, view):
            for line in self._log_end(view, unit.name, pod):
                self._view.line(line)
        self._view.jobs(list(self._known.values()))
        self._changed.set()

    def _log_end(self, view: JobView, unit: str, pod: str) -> Iterator[Line]:
        newest = self._plane.kubelet.newest_log(view.namespace, pod)
        if newest is None:
            return
        file, begin = newest
        yield Line("log", view.name, f"{unit}: last lines of {file}:", unit=unit)
        for text in tail(file, _LOG_BYTES, begin).decode(errors="replace").splitlines()[-_LOG_LINES:]:
            yield Line("log", view.name, f"{unit} | {text}", unit=unit)

    def _on_event(self, old: CachedObject[Obj] | None, new: CachedObject[Obj] | None) -> None:
        if new is not None:
            self._view.event(event_line(new.value))

    def _on_fault(self, fired: Fired) -> None:
        text = f"fault: SIG{fired.fault.signal} to {fired.fault.unit} (pod {fired.pod}) at outer step {fired.step}"
        self._view.line(Line("fault", fired.job, text, warning=True, unit=fired.fault.unit))
        self._recorder.fault((fired.namespace, fired.job), fired.fault.unit, fired.fault.signal, fired.step, fired.at)

    def _interrupt(self) -> None:
        """Drain and end: after the first Ctrl-C, or when the reader of the output is gone."""
        self._interrupted.set()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def interrupt() -> None:
            self._interrupts += 1
            self._interrupt()
            if self._interrupts > 1 or self._timed_out:  # a time-out has already begun a drain, as a first Ctrl-C does
                self._killed.set()

        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, interrupt)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _model_message(self, view: JobView, model: ModelStatus) -> str:
        """Tell how to export the model and, if the job is not over, where it is. The message of a job that is over says that itself."""
        state_dir = self._plane.state_dir.path
        command = shlex.join(["diloco", "export", str(state_dir), "--job", view.name, "-o", "model.safetensors"])
        if view.over:
            what = "the model" if view.complete else "the parameters in the last snapshot"
            return f"{what[0].upper()}{what[1:]} of {view.name} as one file: {command}"
        place = claim_folder(state_dir, view.namespace, model.claim) / model.path
        what = f"The last snapshot of {view.name}, of outer step {model.step},"
        return f"{what} is in {place} ({model.format}), and stays there until you delete it. One file with its parameters: {command}"

    def _how_to_go_on(self, views: Sequence[JobView], before: str, after: str) -> str:
        """Tell what the same command would do with these jobs, between the words `before` and `after`."""
        fresh = [view.name for view in views if not self._has_snapshot(view)]
        if not fresh:
            what = "continue from the last snapshot"
        elif len(fresh) == len(views):
            what = "start from the beginning, because there is no snapshot yet"
        else:
            what = f"continue from the last snapshot, and {', '.join(fresh)}, of which there is none yet, from the beginning"
        return f"{before} {what}{after}: {self._options.resume_command}"

    def _has_snapshot(self, view: JobView) -> bool:
        """An earlier run with the same state directory may have left the snapshot."""
        folder = claim_folder(self._plane.state_dir.path, view.namespace, volume_claim_name(view.name))
        return view.status.model is not None or any((folder / "snapshots").glob("snapshot-*"))

    def _end(self, ending: Ending) -> None:
        # A job that has ended reports no speeds, so the last ones are shown.
        views = [with_speeds(view, self._speeds) for view in self._known.values()]
        injector = self._plane.injector
        keys = {f"{view.namespace}/{view.name}" for view in views}
        record = recorded(self._options.state_dir, keys, self._record, write=self._options.report)
        messages = list(record.claims)
        if ending is Ending.TIMED_OUT:
            late = f"did not complete within {self._options.timeout:g} s"
            messages += [
                f"{view.name} {late}: {self._missing_conditions.get(view.name) or view.missing_condition()}"
                for view in views
                if not view.over
            ]
        if ending in (Ending.INTERRUPTED, Ending.TIMED_OUT):
            messages += [f"{view.name} stopped at outer step {view.status.progress.step}." for view in views if not view.over]
            more = f", for up to {self._options.timeout:g} s more" if ending is Ending.TIMED_OUT else ""
            if stopped := [view for view in views if not view.over]:
                messages.append(self._how_to_go_on(stopped, "To", more))
        if ending is Ending.FAILED:
            failed = [view for view in views if not view.complete]
            messages.append(self._how_to_go_on(failed, "Once the cause is fixed, use the same command to", ""))
        messages += [self._model_message(view, view.status.model) for view in views if view.status.model is not None]
        messages += [f"Fault {fault} never fired." for fault in injector.waiting]
        state_dir = self._plane.state_dir
        pods = [str(state_dir.logs), *(f"in cluster {name} {state_dir.cluster(name).logs}" for name in self._options.clusters)]
        messages.append(f"Logs of the pods: {', '.join(pods)}; of the operator: {state_dir.operator_log}")
        messages += record.remarks
        closing = {
            "ending": ending.value,
            "exitStatus": ending.exit_status,
            "stateDir": str(self._plane.state_dir.path),
            "faults": {
                "fired": [{"fault": str(fired.fault), "job": fired.job, "pod": fired.pod, "step": fired.step} for fired in injector.fired],
                "notFired": [str(fault) for fault in injector.waiting],
                "effects": record.effects,
            },
            "report": str(record.report) if record.report is not None else None,
        }
        self._view.end(views, closing, messages)


def _version(job: Obj) -> int:
    """The API server in memory counts versions up, so they can be compared."""
    return int(job["metadata"]["resourceVersion"])
