"""Writes that the API server rejected, remembered between the reconciles of a job. Only in memory: a new operator tries each once more.

See docs/decisions/0031-writes.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from diloco_operator.api import names
from diloco_operator.api.reasons import EventReason
from diloco_operator.kube.client import AlreadyExists
from diloco_operator.operator.executor import ExecutionResult, Failure
from diloco_operator.plan import Create, Event, Patch, Plan
from diloco_operator.reconcile.observe.rejected_writes import RejectedWrite, WriteKey, write_key


class RejectedWrites:
    """The rejected writes of one job. Its reconcile leaves them out of the plan until they are due again."""

    def __init__(self) -> None:
        self._known: dict[WriteKey, RejectedWrite] = {}

    @property
    def by_object(self) -> Mapping[WriteKey, RejectedWrite]:
        """The writes that are still rejected. `note` replaces the mapping and never changes it."""
        return self._known

    def note(self, generation: int, plan: Plan, result: ExecutionResult, now: float) -> None:
        """Remember what was rejected after a plan, and forget what succeeded."""
        failed = {_key(f.write): f for f in result.failures if f.write is not None}
        if not failed and not self._known:
            return
        known = dict(self._known)
        if result.ok:  # a plan that failed may not have reached all of its writes
            writes: tuple[Create | Patch, ...] = (*plan.creates, *plan.patches)
            for write in writes:
                known.pop(_key(write), None)
            for wanted in plan.certificates:
                known.pop(write_key(names.SECRETS, wanted.obj), None)
        for key, failure in failed.items():
            if failure.is_rejection:
                known[key] = rejected_again(failure, known.get(key), generation, now)
        self._known = known


def rejected_again(failure: Failure, before: RejectedWrite | None, generation: int, now: float) -> RejectedWrite:
    """Return what is remembered of a rejection. `before`: the one before it, None if the write was not rejected until now."""
    count = before.count + 1 if before is not None and before.generation == generation else 1
    return RejectedWrite(failure.error.code, failure.error.message, now, generation, failure.transient, count)


def _key(write: Create | Patch) -> WriteKey:
    return write_key(write.resource, write.obj) if isinstance(write, Create) else (write.resource.kind, write.name)


def rejected_write_events(result: ExecutionResult) -> list[Event]:
    """Return one event for each kind of rejection, however many objects met it. Writes into a namespace that is being deleted have none."""
    first: dict[tuple[EventReason, int], tuple[Failure, int]] = {}
    for failure in result.failures:
        if failure.transient or "being terminated" in failure.error.message:
            continue
        reason = EventReason.NAME_TAKEN if isinstance(failure.error, AlreadyExists) else EventReason.WRITE_REFUSED
        example, count = first.get((reason, failure.error.code), (failure, 0))
        first[reason, failure.error.code] = (example, count + 1)
    return [
        Event.of(reason, f"{example}" + (f" (and {count - 1} more)" if count > 1 else ""))
        for (reason, _), (example, count) in first.items()
    ]
