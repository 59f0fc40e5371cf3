"""Carries out a `Plan`, stage by stage, with the meaning that `plan.py` gives it. Decides nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field

from diloco_operator.api import names
from diloco_operator.kube.client import AlreadyExists, ApiError, Client, Conflict, NotFound, Obj, PatchType, Resource, Unavailable
from diloco_operator.kube.request_fairness import FairSlots
from diloco_operator.operator.events import EventRecorder, Subject
from diloco_operator.plan import ApplyStatus, Create, Delete, IssueCertificates, Patch, Plan
from diloco_operator.timeouts import REQUESTS

log = logging.getLogger(__name__)

DEFAULT_CONCURRENCY = 64
"""Requests under way at once over all jobs."""
JOB_CONCURRENCY = 32
"""Requests under way at once for one job: the rest is for the others, whatever happens to this one."""
LIGHT_FLOW = 8
"""A job that never wants more at once, such as for the hosts of one unit, does not make others wait."""
CONTENTION_CONCURRENCY = 1
"""Requests under way at once for a job that wants more than that, while one that does not has some too: on the API server they would
wait behind this job's."""
READY = 128
"""Objects of a plan that may wait for their turn with their certificates made: what keeps a job's requests going while the next Secret,
with the certificates of up to 64 units, is made and written."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An action that was not carried out."""

    action: str
    """For people: `create Pod ns/name`."""
    error: ApiError
    write: Create | Patch | None = None
    """What was to be made or changed, if it was that."""

    @property
    def transient(self) -> bool:
        """Whether the same action may well succeed later: the server was away, busy or behind."""
        return isinstance(self.error, Unavailable | Conflict) or self.error.code in (408, 429) or self.error.code >= 500

    def __str__(self) -> str:
        return f"{self.action}: {self.error.message}"


@dataclass(slots=True)
class ExecutionResult:
    """What became of a plan. Its actions can all be repeated, so with `failures` the job is simply looked at again later."""

    created: int = 0
    existed: int = 0
    """Creates whose object was there already, made by an earlier pass."""
    patched: list[tuple[Resource, Obj]] = field(default_factory=list, repr=False)
    """Metadata of patched objects, as the API server has them now."""
    deleted: int = 0
    gone: int = 0
    """Deletes whose object was gone already."""
    written: Obj | None = None
    """Metadata of the job, as the API server has it after the status was applied."""
    postponed: bool = False
    """The status, and what follows it, was left to the next pass."""
    failures: list[Failure] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every action but the events, which are best effort, was carried out."""
        return not self.failures


class Executor:
    """Carries out plans with at most `concurrency` requests under way at once over all jobs together, and `per_job` for one job,
    `in_contention` for one that wants more than `few` while there are others that do not. Jobs that wait take turns, request by request.

    `unsent` is called with (resource, namespace, name) of every create and delete that failed or, because an earlier stage failed,
    was never sent: nobody should wait for its effect. If it did happen after all, doing it again is harmless.
    """

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        per_job: int = JOB_CONCURRENCY,
        light: int = LIGHT_FLOW,
        in_contention: int = CONTENTION_CONCURRENCY,
    ) -> None:
        self._client = client
        self._events = events
        self._per_job = per_job
        self._slots: FairSlots[Subject] = FairSlots(concurrency, most=per_job, light=light, most_in_contention=min(in_contention, per_job))

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
        """Creates and certificates, then the status, then deletes, then events. `job` is what the plan was made for. `version`: the job's
        resourceVersion that the plan was made from; the status is written over no other. `postpone` is asked before a status that may
        wait. `certificates` makes the writes of the plan's `certificates`, in its order."""
        outcome = ExecutionResult()
        for wave in sorted({create.wave for create in plan.creates} | {wanted.wave for wanted in plan.certificates}):
            creates = [create for create in plan.creates if create.wave == wave]
            to_issue = [wanted for wanted in plan.certificates if wanted.wave == wave]
            if not outcome.ok:
                _tell_unsent(creates, to_issue, unsent)
            elif to_issue:
                assert certificates is not None, "somebody must make the plan's certificates"
                await self._make(job, creates, to_issue, certificates, outcome, unsent)
            else:
                await _all([self._create(create, job, outcome, unsent) for create in creates])
        if plan.status is not None and outcome.ok:
            outcome.postponed = plan.status.may_wait and postpone()
            if not outcome.postponed:
                await self._apply_status(job, plan.status, version, outcome)
        if outcome.ok and not outcome.postponed:
            await _all([self._delete(job, delete, outcome, unsent) for delete in plan.deletes])
            for event in plan.events:
                self._events.emit(job, event)
        else:
            for delete in plan.deletes:
                unsent(delete.resource, delete.namespace, delete.name)
        return outcome

    async def _make(
        self,
        job: Subject,
        creates: Sequence[Create],
        to_issue: Sequence[IssueCertificates],
        certificates: AsyncIterator[Create | Patch],
        outcome: ExecutionResult,
        unsent: Callable[[Resource, str, str], None],
    ) -> None:
        """Each Secret is written as soon as its certificates are made, and what is made after it is ready then. No more certificates are
        made than the requests need: with all of them made first this process would be busy, and the API server idle."""
        after: dict[str, list[Create]] = {wanted.obj["metadata"]["name"]: [] for wanted in to_issue}
        ready: asyncio.Queue[Create | None] = asyncio.Queue(READY)

        async def send() -> None:
            while (create := await ready.get()) is not None:
                await self._create(create, job, outcome, unsent)

        senders = min(self._per_job, len(creates))
        async with asyncio.TaskGroup() as group:
            for _ in range(senders):
                group.create_task(send())
            for create in creates:
                if create.after in after:
                    after[create.after].append(create)
                else:
                    await ready.put(create)
            for _ in to_issue:
                name, there = await self._certified(await anext(certificates), job, outcome, unsent)
                if not there:
                    _tell_unsent(after[name], [], unsent)
                for create in after[name] if there else ():
                    await ready.put(create)
            for _ in range(senders):
                await ready.put(None)

    async def _certified(
        self, secret: Create | Patch, job: Subject, outcome: ExecutionResult, unsent: Callable[[Resource, str, str], None]
    ) -> tuple[str, bool]:
        """The Secret's name, and whether it is as it shall be now."""
        if isinstance(secret, Patch):
            return secret.name, await self._patch(secret, job, outcome)
        return secret.obj["metadata"]["name"], await self._create(secret, job, outcome, unsent)

    async def _create(self, create: Create, job: Subject, outcome: ExecutionResult, unsent: Callable[[Resource, str, str], None]) -> bool:
        """Whether it is there now."""
        meta = create.obj["metadata"]
        namespace, name = meta.get("namespace", ""), meta["name"]
        action = f"create {create.resource.kind} {namespace}/{name}"
        try:
            await self._request(
                job,
                lambda: self._client.create(create.resource, create.obj, field_manager=names.FIELD_MANAGER, metadata_only=True),
            )
        except AlreadyExists:
            return await self._check_owner(create, job, action, outcome, unsent)
        except ApiError as error:
            outcome.failures.append(Failure(action, error, create))
            unsent(create.resource, namespace, name)
            return False
        outcome.created += 1
        return True

    async def _check_owner(
        self, create: Create, job: Subject, action: str, outcome: ExecutionResult, unsent: Callable[[Resource, str, str], None]
    ) -> bool:
        """The name is taken: by ourselves earlier, which is success, or by somebody else."""
        meta = create.obj["metadata"]
        namespace, name = meta.get("namespace", ""), meta["name"]
        try:
            there = await self._request(job, lambda: self._client.get(create.resource, namespace, name))
        except ApiError as error:  # also NotFound: it went away in between, so the create is worth another try
            outcome.failures.append(Failure(action, error))
            unsent(create.resource, namespace, name)
            return False
        if any(owner.get("uid") == job.uid for owner in there["metadata"].get("ownerReferences", ())):
            if create.fresh:
                outcome.failures.append(Failure(action, Conflict(409, "Conflict", "an earlier one is there already; looking again")))
                unsent(create.resource, namespace, name)
                return False
            outcome.existed += 1
            return True
        kind = create.resource.kind
        message = (
            f"{kind} {namespace}/{name} exists and does not belong to this job; delete or rename that {kind}, or give the job another name"
        )
        outcome.failures.append(Failure(action, AlreadyExists(409, "AlreadyExists", message), create))
        unsent(create.resource, namespace, name)
        return False

    async def _patch(self, patch: Patch, job: Subject, outcome: ExecutionResult) -> bool:
        """Whether it is as it shall be now."""
        try:
            written = await self._request(
                job,
                lambda: self._client.patch(
                    patch.resource,
                    patch.namespace,
                    patch.name,
                    patch.body,
                    type=PatchType.MERGE,
                    field_manager=names.FIELD_MANAGER,
                    metadata_only=True,
                ),
            )
        except NotFound as error:  # deleted since: not what the patch was decided on, so as good as changed
            gone = Conflict(409, "Conflict", error.message)
            outcome.failures.append(Failure(f"patch {patch.resource.kind} {patch.namespace}/{patch.name}", gone))
        except ApiError as error:
            outcome.failures.append(Failure(f"patch {patch.resource.kind} {patch.namespace}/{patch.name}", error, patch))
        else:
            outcome.patched.append((patch.resource, written))
            return True
        return False

    async def _apply_status(self, job: Subject, apply: ApplyStatus, version: str, outcome: ExecutionResult) -> None:
        """The version makes the server refuse the status if the job was deleted and made anew under the same name: through the status of
        a custom resource an API server does not look at the uid."""
        body: Obj = {
            "apiVersion": apply.resource.api_version,
            "kind": apply.resource.kind,
            "metadata": {
                "name": apply.name,
                "namespace": apply.namespace,
                "uid": apply.uid,
                **({"resourceVersion": version} if version else {}),
            },
            "status": apply.status,
        }
        try:
            outcome.written = await self._request(
                job,
                lambda: self._client.patch(
                    apply.resource,
                    apply.namespace,
                    apply.name,
                    body,
                    type=PatchType.APPLY,
                    subresource="status",
                    field_manager=names.FIELD_MANAGER,
                    force=True,
                    metadata_only=True,
                ),
            )
        except ApiError as error:
            outcome.failures.append(Failure(f"apply status of {apply.resource.kind} {apply.namespace}/{apply.name}", error))

    async def _delete(self, job: Subject, delete: Delete, outcome: ExecutionResult, unsent: Callable[[Resource, str, str], None]) -> None:
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
            outcome.deleted += 1
        except (NotFound, Conflict):  # gone, or another object under the same name: either way the one we meant is no more
            outcome.gone += 1
        except ApiError as error:
            outcome.failures.append(Failure(action, error))
            unsent(delete.resource, delete.namespace, delete.name)

    async def _request[T](self, job: Subject, send: Callable[[], Awaitable[T]]) -> T:
        """One request, in its turn. No answer in time is the same as no connection: nothing is known of it."""
        async with self._slots.slot(job):
            try:
                async with asyncio.timeout(REQUESTS.write):
                    return await send()
            except TimeoutError:
                raise Unavailable(504, "Timeout", f"no answer within {REQUESTS.write:.0f} s") from None


def _tell_unsent(creates: Sequence[Create], to_issue: Sequence[IssueCertificates], unsent: Callable[[Resource, str, str], None]) -> None:
    for create in creates:
        meta = create.obj["metadata"]
        unsent(create.resource, meta.get("namespace", ""), meta["name"])
    for wanted in to_issue:
        if not wanted.uid:
            meta = wanted.obj["metadata"]
            unsent(names.SECRETS, meta["namespace"], meta["name"])


async def _all(actions: Sequence[Coroutine[None, None, object]]) -> None:
    """Carry out concurrently. No action raises `ApiError`; any other exception is a defect and ends the pass."""
    if len(actions) == 1:
        await actions[0]
    elif actions:
        async with asyncio.TaskGroup() as group:
            for action in actions:
                group.create_task(action)
