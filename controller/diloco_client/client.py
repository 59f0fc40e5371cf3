"""The client of a cluster's jobs.

See docs/decisions/0258-submit-and-client.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from diloco.export.model_file import DType
from diloco.export.places import ExportError
from diloco_cli.cluster import DEFAULT_NAMESPACE, CommandError, cluster_errors, no_such_resource
from diloco_cli.commands.export import write_model
from diloco_cli.jobs import find_job, list_jobs, wait_for_object
from diloco_cli.kubectl.export import fetch_model
from diloco_cli.kubectl.export_claim import ClaimRequest
from diloco_cli.kubectl.logs import SYNCER, logs_of
from diloco_cli.kubectl.suspension import set_suspend
from diloco_cli.manifests import Manifest, ManifestError, load_manifests, validate_jobs
from diloco_cli.pod_logs import Source, log_pieces
from diloco_cli.view_model import JobView
from diloco_operator.api.conditions import TERMINAL, ConditionType
from diloco_operator.api.job import DiLoCoJob, InvalidJob, dump, load
from diloco_operator.api.names import DILOCO_JOBS, MANAGER, PYTHON_CLIENT
from diloco_operator.api.status import ConditionStatus
from diloco_operator.kube.client import ApiError, NotFound, Obj
from diloco_operator.kube.rest import RestClient, load_config
from diloco_operator.kube.rest.line_splitter import LineSplitter
from diloco_operator.timeouts import EXPORT

from diloco_client.loop import LoopThread
from diloco_client.progress import ProgressLine

_GIVEN = "the job"
"""How errors name a job that did not come from a file."""
_WRITTEN = ("name", "namespace", "labels", "annotations")
"""Fields of metadata that a user writes; the API server sets the others."""
_LINES_AHEAD = 1000
"""Lines of logs that are read ahead of the caller."""


class ClientError(Exception):
    """What is wrong, where, and what to do."""


class JobFailed(ClientError):
    """The job that `Client.wait` waited for has failed. `job` has its last status."""

    def __init__(self, job: DiLoCoJob) -> None:
        self.job = job
        condition = job.condition(ConditionType.FAILED)
        why = condition.why if condition else "its condition Failed is True"
        super().__init__(f'job "{job.metadata.name}" failed: {why}')


@dataclass(frozen=True, slots=True)
class Exported:
    """A model that was written to a file."""

    path: Path
    bytes: int
    sha256: str
    outer_step: int
    parameters: int
    tensors: int


class Client:
    """The jobs of one namespace. Its methods wait for their result, in a notebook too, and raise `ClientError`. `connect` makes one; as a
    context manager it closes itself."""

    def __init__(self, loop: LoopThread, connection: contextlib.AsyncExitStack, api: RestClient, namespace: str, source: str) -> None:
        self.namespace = namespace
        self._loop = loop
        self._connection = connection
        self._api = api
        self._source = source

    @classmethod
    def connect(cls, *, namespace: str = "", context: str = "", kubeconfig: str = "") -> Self:
        """Connect as kubectl does: with $KUBECONFIG or ~/.kube/config, in a pod with its service account. "" stands for kubectl's default.
        Raises ClientError if no credentials can be used. Only the first call of a method reaches the server."""
        with _errors(kubeconfig or "the cluster"):
            config = load_config(kubeconfig, context)
            loop = LoopThread(PYTHON_CLIENT)
            connection = contextlib.AsyncExitStack()
            try:
                api = loop.run(connection.enter_async_context(RestClient.connect(config, user_agent=PYTHON_CLIENT)))
            # After Ctrl-C, too, the thread must end here: no other code knows of it.
            except BaseException:
                loop.close()
                raise
        return cls(loop, connection, api, namespace or config.namespace or DEFAULT_NAMESPACE, config.source)

    def close(self) -> None:
        """End the connections. May be repeated."""
        with contextlib.suppress(RuntimeError):
            self._loop.run(self._connection.aclose())
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # --- jobs ---------------------------------------------------------------------------------------------------------
    def create(self, job: DiLoCoJob | Mapping[str, Any] | str | Path) -> DiLoCoJob:
        """Create a job: a `DiLoCoJob`, the API object as a mapping, or the path of a YAML file with one job. It is checked as by `diloco
        validate`, and gets the client's namespace unless it names another."""
        with _errors(self._source):
            [manifest] = validate_jobs([self._manifest(job)])
            return load(self._loop.run(self._create(manifest.obj)))

    async def _create(self, obj: Obj) -> Obj:
        try:
            return await self._api.create(DILOCO_JOBS, obj, field_manager=PYTHON_CLIENT)
        except NotFound as error:
            raise no_such_resource() from error

    def _manifest(self, job: DiLoCoJob | Mapping[str, Any] | str | Path) -> Manifest:
        if isinstance(job, str | Path):
            manifests = load_manifests([job])
            if len(manifests) != 1:
                raise ClientError(f"{job} has {len(manifests)} jobs; create takes one: give them one by one, as objects")
            return Manifest(self._placed(manifests[0].obj), manifests[0].file, manifests[0].document, manifests[0].lines)
        return Manifest(self._placed(_object(job) if isinstance(job, DiLoCoJob) else dict(job)), _GIVEN, 0)

    def _placed(self, obj: Obj) -> Obj:
        """Put the object into the client's namespace unless it names one."""
        metadata = obj.get("metadata")
        if not isinstance(metadata, Mapping):
            return obj
        return {**obj, "metadata": {**metadata, "namespace": metadata.get("namespace") or self.namespace}}

    def get(self, name: str) -> DiLoCoJob:
        """Return a job with its status."""
        with _errors(self._source):
            return load(self._loop.run(find_job(self._api, self.namespace, name)))

    def list(self) -> list[DiLoCoJob]:
        """Return all jobs of the namespace, sorted by name."""
        with _errors(self._source):
            return [load(obj) for obj in self._loop.run(list_jobs(self._api, self.namespace))]

    def wait(
        self, name: str, condition: str = ConditionType.COMPLETE, *, seconds: float | None = None, progress: bool = False
    ) -> DiLoCoJob:
        """Return the job as soon as its condition is True: Accepted, Placed, Training, Degraded, Suspended, Complete or Failed.

        Raises JobFailed if the job fails first, ClientError if it completes or is deleted first, and TimeoutError after `seconds`.

        Args:
            seconds: how long to wait; None for any time
            progress: show on standard output how the job goes, in one line that is written anew with each change
        """
        wanted = _condition(condition)
        if seconds is not None:
            _check_seconds(seconds)
        with _errors(self._source), ProgressLine() if progress else contextlib.nullcontext() as line:
            return load(self._loop.run(self._wait(name, wanted, seconds, line)))

    async def _wait(self, name: str, wanted: ConditionType, seconds: float | None, line: ProgressLine | None) -> Obj:
        def holds(obj: Obj) -> bool:
            if line is not None:
                line.show(JobView.of(obj))
            return _is_reached(load(obj), wanted)

        reached = await wait_for_object(self._api, self.namespace, name, holds, seconds=seconds)
        if reached is None:
            how = JobView.of(await find_job(self._api, self.namespace, name)).missing_condition()
            raise TimeoutError(f'job "{name}" is not {wanted} after {seconds:g} s: {how}')
        return reached

    def suspend(self, name: str) -> DiLoCoJob:
        """Set spec.suspend: learners end, and their state is kept. `wait(name, "Suspended")` waits until the last pod has ended."""
        return self._set_suspend(name, suspend=True)

    def resume(self, name: str) -> DiLoCoJob:
        """Clear spec.suspend: the job goes on where it stopped."""
        return self._set_suspend(name, suspend=False)

    def _set_suspend(self, name: str, *, suspend: bool) -> DiLoCoJob:
        with _errors(self._source):
            self._loop.run(set_suspend(self._api, self.namespace, name, lambda _text: None, suspend=suspend))
        return self.get(name)

    def delete(self, name: str) -> None:
        """Delete a job with its pods. `spec.syncer.storage.retain` says whether its snapshots stay."""
        with _errors(self._source):
            self._loop.run(self._delete(name))

    async def _delete(self, name: str) -> None:
        job = await find_job(self._api, self.namespace, name)
        # Deleted by uid, because a new job of this name must stay.
        await self._api.delete(DILOCO_JOBS, self.namespace, name, uid=job["metadata"]["uid"])

    # --- what a job wrote ---------------------------------------------------------------------------------------------
    def logs(
        self,
        name: str,
        unit: str = SYNCER,
        *,
        follow: bool = False,
        tail: int | None = None,
        previous: bool = False,
        host: int | None = None,
    ) -> Iterator[str]:
        """Yield the lines of the log of a unit's newest attempt, by default of the syncer. Lines of a unit of several hosts begin with
        `[host N]`.

        Args:
            follow: go on with new lines until the pod ends
            tail: how many of the existing lines to begin with, the last ones; None for all
            previous: of the attempt before the newest
            host: of this host only; None for all
        """
        with _errors(self._source):
            chosen = self._loop.run(logs_of(self._api, self.namespace, name, unit, host=host, previous=previous, container=""))
            yield from self._loop.each((self._lines_as_they_come if follow else self._lines)(chosen.sources, tail))

    async def _lines(self, sources: Sequence[Source], tail: int | None) -> AsyncIterator[str]:
        for source in sources:
            async with contextlib.aclosing(self._lines_of(source, tail, follow=False)) as lines:  # type: ignore[type-var]
                async for line in lines:
                    yield line

    async def _lines_as_they_come(self, sources: Sequence[Source], tail: int | None) -> AsyncIterator[str]:
        # The semaphore bounds the lines, not the queue: the None at the end must find room even if the caller takes no more lines.
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        room = asyncio.Semaphore(_LINES_AHEAD)

        async def read(source: Source) -> None:
            async with contextlib.aclosing(self._lines_of(source, tail, follow=True)) as lines:  # type: ignore[type-var]
                async for line in lines:
                    await room.acquire()
                    queue.put_nowait(line)

        async def read_all() -> None:
            try:
                async with asyncio.TaskGroup() as group:
                    for source in sources:
                        group.create_task(read(source))
            except* (CommandError, ApiError) as errors:
                raise errors.exceptions[0] from None

        reading = asyncio.create_task(read_all())
        reading.add_done_callback(lambda _ended: queue.put_nowait(None))
        try:
            while (line := await queue.get()) is not None:
                room.release()
                yield line
            await reading
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    async def _lines_of(self, source: Source, tail: int | None, *, follow: bool) -> AsyncIterator[str]:
        lines = LineSplitter()
        log = log_pieces(self._api, self.namespace, source, follow=follow, tail=tail)
        async with contextlib.aclosing(log) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                for line in lines.feed(piece):
                    yield line.decode(errors="replace")
        if lines.rest:
            yield lines.rest.decode(errors="replace")

    def export(
        self,
        name: str,
        output: str | Path,
        *,
        step: int | None = None,
        snapshot: str = "",
        dtype: DType = "float32",
        image: str = "",
        seconds: float = EXPORT.whole,
    ) -> Exported:
        """Write the model of a job's newest snapshot, or of the snapshot with this outer step or name, as one safetensors file. If `output`
        is a folder, the file is model.safetensors in it. A pod reads the syncer's claim, as for `kubectl diloco export`."""
        _check_seconds(seconds)
        request, output = ClaimRequest(name, image=image, seconds=seconds), Path(output)
        with _errors(self._source):
            written = self._loop.run(fetch_model(self._api, self.namespace, request, output, step, snapshot, dtype))
            # Without a claim this is the URI of its copies. They are read in the caller's thread, so that the loop can serve other calls.
            if isinstance(written, str):
                written = write_model(written, "", output, step, snapshot, dtype)
        target, about = written
        return Exported(target.path, target.bytes, target.sha256, about.step, about.parameters, about.tensors)


def _object(job: DiLoCoJob) -> Obj:
    """The object to create: without status, and with only the metadata that a user writes."""
    obj = dump(job)
    del obj["status"]
    # An API server creates no object with a resourceVersion, and a job that was read has one.
    obj["metadata"] = {key: value for key in _WRITTEN if (value := obj["metadata"].get(key))}
    return obj


def _condition(name: str) -> ConditionType:
    try:
        return ConditionType(name)
    except ValueError as error:
        raise ClientError(f'there is no condition "{name}"; a job has {", ".join(ConditionType)}') from error


def _check_seconds(seconds: float) -> None:
    if not 0 < seconds < math.inf:
        raise ClientError(f"seconds must be a number above 0, not {seconds}")


def _is_reached(job: DiLoCoJob, wanted: ConditionType) -> bool:
    """Whether the condition is True for the present spec. Raises JobFailed or ClientError if it cannot become True."""
    true = {
        condition.type
        for condition in job.status.conditions
        # Right after a change of the spec the conditions are still about the old one, and would end the wait at once.
        if condition.status is ConditionStatus.TRUE and (condition.observed_generation or 0) >= job.metadata.generation
    }
    if wanted in true:
        return True
    if ConditionType.FAILED in true:
        raise JobFailed(job)
    if over := [terminal for terminal in TERMINAL if terminal in true]:
        raise ClientError(f'job "{job.metadata.name}" is {over[0]}, so {wanted} will not become True')
    if job.spec.managed_by != MANAGER:
        raise ClientError(f'spec.managedBy of job "{job.metadata.name}" is {job.spec.managed_by}: this operator does not act on it')
    return False


@contextlib.contextmanager
def _errors(source: str) -> Iterator[None]:
    """Turn the errors of commands, clusters, manifests and exports into `ClientError`."""
    try:
        with cluster_errors(source):
            yield
    except CommandError as error:
        raise ClientError(error.message) from error
    except ManifestError as error:
        raise ClientError("\n".join(map(str, error.problems))) from error
    except (InvalidJob, ExportError) as error:
        raise ClientError(str(error)) from error
