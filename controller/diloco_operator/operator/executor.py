"""Carries out a `Plan`, stage by stage, as `plan.py` describes. It decides nothing.

See docs/decisions/0031-writes.md. See docs/decisions/0206-before-units-leave.md.
See docs/decisions/0091-fairness-on-one-loop.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from diloco_operator.api import names
from diloco_operator.kube.client import AlreadyExists, ApiError, Client, Conflict, InternalError, NotFound, Obj, Resource, Unavailable
from diloco_operator.kube.request_fairness import FairSlots
from diloco_operator.operator.events import EventRecorder, Subject
from diloco_operator.plan import Create, Delete, IssueCertificates, Patch, Plan, PodCheck, ReplaceStatus
from diloco_operator.timeouts import REQUESTS

log = logging.getLogger(__name__)

DEFAULT_CONCURRENCY = 64
"""Requests at once, over all jobs."""
JOB_CONCURRENCY = 32
"""Requests at once for one job. The other slots are for the other jobs, whatever happens to this one."""
LIGHT_FLOW = 8
"""A job that never wants more requests at once, as for the hosts of one unit, is a light flow. It delays no other job."""
CONTENTION_CONCURRENCY = 1
"""Requests at once for a heavy flow while a light flow has requests too: on the API server the light flow's requests would wait behind
them."""
READY = 128
"""Objects of a plan that may wait for a slot after their certificates are made. They keep the job's requests going while the next Secret,
with the certificates of up to 64 units, is made and written."""


async def _at_once(_: Subject) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Failure:
    """An action that was not carried out."""

    action: str
    """Human-readable: `create Pod ns/name`."""
    error: ApiError
    write: Create | Patch | None = None
    """The write, if the action was a create or a patch."""

    @property
    def is_rejection(self) -> bool:
        """Whether the server rejected the action, or failed at it. Else it was not reached, had a newer state, or did not know this program
        just now, as while a token rotates."""
        if isinstance(self.error, InternalError):
            return True
        return not isinstance(self.error, Unavailable | Conflict) and self.error.code != 401

    @property
    def transient(self) -> bool:
        """Whether the same action may succeed later: it was not rejected, or the server was busy or failed."""
        return not self.is_rejection or self.error.code in (408, 429) or self.error.code >= 500

    def __str__(self) -> str:
        return f"{self.action}: {self.error.message}"


@dataclass(slots=True)
class ExecutionResult:
    """What became of a plan. Every action can be repeated, so after `failures` the job is simply reconciled again later."""

    created: int = 0
    existed: int = 0
    """Creates whose object existed already, from an earlier reconcile."""
    patched: list[tuple[Resource, Obj]] = field(default_factory=list, repr=False)
    """Metadata of patched objects, as the API server has them now."""
    deleted: int = 0
    gone: int = 0
    """Deletes whose object was gone already."""
    answers: list[tuple[PodCheck, Failure | None]] = field(default_factory=list, repr=False)
    """Dry runs, each with its refusal, or None if it was admitted."""
    admitted: list[tuple[PodCheck, Obj]] = field(default_factory=list, repr=False)
    """Dry runs that were admitted, each with the pod as the API server would store it."""
    written: Obj | None = None
    """Metadata of the job, as the API server has it after the status was written."""
    postponed: bool = False
    """The status, and what follows it, was left to the next reconcile."""
    failures: list[Failure] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every action was carried out. Events do not count: they are best effort."""
        return not self.failures

    @property
    def wrote(self) -> bool:
        """Whether any request was sent for objects of the job."""
        return self.written is not None or bool(self.patched or self.failures or self.created or self.existed or self.deleted or self.gone)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Requests at once."""

    total: int = DEFAULT_CONCURRENCY
    """Over all jobs."""
    per_job: int = JOB_CONCURRENCY
    light: int = LIGHT_FLOW
    """A job that wants more at once gets `in_contention` while other jobs write too."""
    in_contention: int = CONTENTION_CONCURRENCY


class Executor:
    """Carries out plans, within the limits of requests. Waiting jobs take turns, request by request.

    `crowds_others` tells whether a job's namespace is a crowd, with other namespaces at work. The requests of a crowd go one at a time, and
    `give_way` is awaited before each of them.
    """

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        limits: RequestLimits | None = None,
        *,
        crowds_others: Callable[[Subject], bool] = lambda _: False,
        give_way: Callable[[Subject], Awaitable[None]] = _at_once,
    ) -> None:
        self._client = client
        self._events = events
        limits = limits or RequestLimits()
        self._per_job = limits.per_job
        self._crowds_others = crowds_others
        self._give_way = give_way
        self._one_at_a_time: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By namespace. A lock lives as long as requests hold it or wait for it."""
        self._slots: FairSlots[Subject] = FairSlots(
            limits.total, most=limits.per_job, light=limits.light, most_in_contention=min(limits.in_contention, limits.per_job)
        )

    async def execute(
        self,
        job: Subject,
        plan: Plan,
        *,
        version: str = "",
        unsent: Callable[[Resource, str, str], None] = lambda *_: None,
        postpone: Callable[[], bool] = lambda: False,
        certificates: AsyncIterator[Create | Patch] | None = None,
    ) -> ExecutionResult:
        """Carry out patches, creates and certificates, then the status, then deletes, events and dry runs.

        Args:
            job: the job of the plan.
            version: the job's resourceVersion that the plan was made from. The status replaces this version only.
            unsent: called with (resource, namespace, name) of each create and delete that failed, or was not sent because an earlier stage
                failed: its effect must not be expected. If it happened after all, to do it again is harmless.
            postpone: asked before a status that may wait.
            certificates: yields the writes for the plan's `certificates`, in their order.
        """
        result = ExecutionResult()
        await _all([self._patch(patch, job, result) for patch in plan.patches])
        for wave in sorted({create.wave for create in plan.creates} | {wanted.wave for wanted in plan.certificates}):
            creates = [create for create in plan.creates if create.wave == wave]
            to_issue = [wanted for wanted in plan.certificates if wanted.wave == wave]
            # Objects of a later wave need the objects of all earlier ones.
            if not result.ok:
                _report_unsent(creates, to_issue, unsent)
            elif to_issue:
                assert certificates is not None, "a plan with certificates needs their writes"
                await self._make(job, creates, to_issue, certificates, result, unsent)
            else:
                await _all([self._create(create, job, result, unsent) for create in creates])
        if plan.status is not None and result.ok:
            result.postponed = plan.status.may_wait and postpone()
            if not result.postponed:
                await self._replace_status(job, plan.status, version, result)
        if result.ok and not result.postponed:
            await _all([self._delete(job, delete, result, unsent) for delete in plan.deletes])
            # After the status: if that cannot be written, the next reconcile emits the events again, and users would read them twice.
            for event in plan.events:
                self._events.emit(job, event)
            await _all([self._check_pod(check, job, result) for check in plan.pod_checks])
        else:
            # No watch event will show these deletes: to expect one would hold the next reconcile back.
            for delete in plan.deletes:
                unsent(delete.resource, delete.namespace, delete.name)
        return result

    async def _make(
        self,
        job: Subject,
        creates: Sequence[Create],
        to_issue: Sequence[IssueCertificates],
        certificates: AsyncIterator[Create | Patch],
        result: ExecutionResult,
        unsent: Callable[[Resource, str, str], None],
    ) -> None:
        """Write each Secret as soon as its certificates are made, then create the objects that need it. Certificates are made only as fast
        as requests need them: if all were made first, this process would be busy and the API server idle."""
        dependents: dict[str, list[Create]] = {wanted.obj["metadata"]["name"]: [] for wanted in to_issue}
        ready: asyncio.Queue[Create | None] = asyncio.Queue(READY)

        async def send() -> None:
            while (create := await ready.get()) is not None:
                await self._create(create, job, result, unsent)

        senders = min(self._per_job, len(creates))
        async with asyncio.TaskGroup() as group:
            for _ in range(senders):
                group.create_task(send())
            for create in creates:
                if create.after in dependents:
                    dependents[create.after].append(create)
                else:
                    await ready.put(create)
            for _ in to_issue:
                name, written = await self._certified(await anext(certificates), job, result, unsent)
                if not written:
                    _report_unsent(dependents[name], [], unsent)
                for create in dependents[name] if written else ():
                    await ready.put(create)
            # A None for each sender, behind everything that is to be sent, ends it: the group waits for all senders.
            for _ in range(senders):
                await ready.put(None)

    async def _certified(
        self, secret: Create | Patch, job: Subject, result: ExecutionResult, unsent: Callable[[Resource, str, str], None]
    ) -> tuple[str, bool]:
        """Write a Secret. Return its name, and whether it has the wanted content now."""
        if isinstance(secret, Patch):
            return secret.name, await self._patch(secret, job, result)
        return secret.obj["metadata"]["name"], await self._create(secret, job, result, unsent)

    async def _create(self, create: Create, job: Subject, result: ExecutionResult, unsent: Callable[[Resource, str, str], None]) -> bool:
        """Create an object. Return whether it exists now."""
        meta = create.obj["metadata"]
        namespace, name = meta.get("namespace", ""), meta["name"]
        action = f"create {create.resource.kind} {namespace}/{name}"
        try:
            await self._request(
                job,
                lambda: self._client.create(create.resource, create.obj, field_manager=names.FIELD_MANAGER, metadata_only=True),
            )
        except AlreadyExists:
            return await self._check_owner(create, job, action, result, unsent)
        except ApiError as error:
            result.failures.append(Failure(action, error, create))
            unsent(create.resource, namespace, name)
            return False
        result.created += 1
        return True

    async def _check_pod(self, check: PodCheck, job: Subject, result: ExecutionResult) -> None:
        meta = check.pod["metadata"]
        try:
            stored = await self._request(
                job,
                lambda: self._client.create(names.PODS, check.pod, field_manager=names.FIELD_MANAGER, dry_run=True),
            )
        except ApiError as error:
            # A refusal is an answer too, and no failure of the plan.
            result.answers.append((check, Failure(f"dry run of Pod {meta.get('namespace', '')}/{meta['name']}", error)))
        else:
            result.answers.append((check, None))
            result.admitted.append((check, stored))

    async def _check_owner(
        self, create: Create, job: Subject, action: str, result: ExecutionResult, unsent: Callable[[Resource, str, str], None]
    ) -> bool:
        """An object has the name already. Return whether it stands for the create: an earlier write for this job made it, or its volume
        claim was kept. A foreign object is a failure."""
        meta = create.obj["metadata"]
        namespace, name = meta.get("namespace", ""), meta["name"]
        try:
            existing = await self._request(job, lambda: self._client.get(create.resource, namespace, name))
        except ApiError as error:  # also NotFound: it vanished meanwhile, so the create should be tried again
            result.failures.append(Failure(action, error))
            unsent(create.resource, namespace, name)
            return False
        kept_for = (existing["metadata"].get("annotations") or {}).get(names.ANNOTATION_JOB_UID)
        if create.may_have_made(existing, job.uid) or (create.resource == names.VOLUME_CLAIMS and kept_for == job.uid):
            if create.fresh:  # the existing object has other content, such as another key: the next plan is made from it
                result.failures.append(
                    Failure(action, Conflict(409, "Conflict", "an earlier object with this name exists; the job is reconciled again"))
                )
                unsent(create.resource, namespace, name)
                return False
            result.existed += 1
            return True
        message = f"{create.resource.kind} {namespace}/{name} exists and does not belong to this job"
        result.failures.append(Failure(action, AlreadyExists(409, "AlreadyExists", message), create))
        unsent(create.resource, namespace, name)
        return False

    async def _patch(self, patch: Patch, job: Subject, result: ExecutionResult) -> bool:
        """Change an object. Return whether it has the wanted content now."""
        try:
            written = await self._request(
                job,
                lambda: self._client.patch(
                    patch.resource,
                    patch.namespace,
                    patch.name,
                    patch.body,
                    subresource=patch.subresource,
                    field_manager=names.FIELD_MANAGER,
                    metadata_only=True,
                ),
            )
        except NotFound as error:  # deleted since the decision: handle it like a changed object
            gone = Conflict(409, "Conflict", error.message)
            result.failures.append(Failure(f"patch {patch.resource.kind} {patch.namespace}/{patch.name}", gone))
        except ApiError as error:
            result.failures.append(Failure(f"patch {patch.resource.kind} {patch.namespace}/{patch.name}", error, patch))
        else:
            result.patched.append((patch.resource, written))
            return True
        return False

    async def _replace_status(self, job: Subject, wanted: ReplaceStatus, version: str, result: ExecutionResult) -> None:
        """Replace the whole status. The server refuses it if the job changed after `version`, or was made again under the same name."""
        body: Obj = {
            "metadata": {"name": wanted.name, "namespace": wanted.namespace, "uid": wanted.uid, "resourceVersion": version},
            "status": wanted.status,
        }
        try:
            result.written = await self._request(
                job,
                lambda: self._client.update(
                    wanted.resource, body, subresource="status", field_manager=names.FIELD_MANAGER, metadata_only=True
                ),
            )
        except ApiError as error:
            result.failures.append(Failure(f"write status of {wanted.resource.kind} {wanted.namespace}/{wanted.name}", error))

    async def _delete(self, job: Subject, delete: Delete, result: ExecutionResult, unsent: Callable[[Resource, str, str], None]) -> None:
        action = f"delete {delete.resource.kind} {delete.namespace}/{delete.name}"
        if delete.why:
            log.info("%s: %s", action, delete.why)
        try:
            await self._request(
                job,
                lambda: self._client.delete(
                    delete.resource, delete.namespace, delete.name, grace_seconds=delete.grace_seconds, uid=delete.uid
                ),
            )
            result.deleted += 1
        except (NotFound, Conflict):  # it is gone, or another object has its name: both mean that it is deleted
            result.gone += 1
        except ApiError as error:
            result.failures.append(Failure(action, error))
            unsent(delete.resource, delete.namespace, delete.name)

    async def _request[T](self, job: Subject, send: Callable[[], Awaitable[T]]) -> T:
        """Send one request, once the job has a slot. Raises `Unavailable` after a time-out: its effect is unknown, as without a
        connection."""
        # The turn comes first: a request that waits for it must hold no slot, which others could use.
        async with self._turn(job), self._slots.slot(job):
            try:
                async with asyncio.timeout(REQUESTS.write):
                    return await send()
            except TimeoutError:
                raise Unavailable(504, "Timeout", f"no answer within {REQUESTS.write:.0f} s") from None

    @asynccontextmanager
    async def _turn(self, job: Subject) -> AsyncIterator[None]:
        """Wait until a request may be sent. The requests of a crowd go one at a time and give way to others before each."""
        if not self._crowds_others(job):
            yield
            return
        lock = self._one_at_a_time.setdefault(job.namespace, asyncio.Lock())
        async with lock:
            await self._give_way(job)
            yield


def _report_unsent(creates: Sequence[Create], to_issue: Sequence[IssueCertificates], unsent: Callable[[Resource, str, str], None]) -> None:
    for create in creates:
        meta = create.obj["metadata"]
        unsent(create.resource, meta.get("namespace", ""), meta["name"])
    for wanted in to_issue:
        if not wanted.uid:
            meta = wanted.obj["metadata"]
            unsent(names.SECRETS, meta["namespace"], meta["name"])


async def _all(actions: Sequence[Coroutine[None, None, object]]) -> None:
    """Carry out actions concurrently. None raises `ApiError`; any other exception is a defect and ends the reconcile."""
    if len(actions) == 1:
        await actions[0]
    elif actions:
        async with asyncio.TaskGroup() as group:
            for action in actions:
                group.create_task(action)
