"""`kubectl diloco suspend` and `resume`: write spec.suspend, and wait for the effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from diloco.wording import plural
from diloco_operator.api.conditions import ConditionType
from diloco_operator.api.durations import format_duration
from diloco_operator.api.names import DILOCO_JOBS, KUBECTL_PLUGIN, MANAGER
from diloco_operator.kube.client import Client, Obj

from diloco_cli.cluster import CommandError
from diloco_cli.dominant import at_home
from diloco_cli.jobs import find_job, reference, wait_until
from diloco_cli.view_model import JobView

type Emit = Callable[[str], None]


async def set_suspend(client: Client, namespace: str, name: str, emit: Emit, *, suspend: bool) -> None:
    """Write spec.suspend and emit a line, also if nothing changes. Raises `CommandError` for a job that has ended, and for a part of which
    the operator at home writes that field."""
    obj = await find_job(client, namespace, name)
    view = JobView.of(obj)
    word = "suspended" if suspend else "resumed"
    if view.made:
        home = view.status.home
        # Before the part has heard of its home, no command can be named.
        how = f": {at_home(view, 'suspend' if suspend else 'resume')}" if home is not None and home.name else ""
        raise CommandError(f'job "{name}" is a part, and is {word} with the job that it belongs to{how}')
    if view.over:
        how = "complete" if view.complete else "failed"
        again = "" if view.complete else f"; kubectl diloco retry {name} {view.flags} starts it again"
        raise CommandError(f'job "{name}" is {how} already and cannot be {word}{again}')
    if view.suspend == suspend:
        emit(f"{reference(name)} {'is suspended already' if suspend else 'is not suspended'}")
    else:
        await client.patch(DILOCO_JOBS, namespace, name, {"spec": {"suspend": suspend}}, field_manager=KUBECTL_PLUGIN)
        emit(f"{reference(name)} {word}")
    if note := foreign_manager_note(obj):
        emit(note)


async def wait_suspended(client: Client, namespace: str, name: str, emit: Emit, *, seconds: float) -> None:
    """Wait until no pod runs any more and the state is saved."""

    def is_suspended(view: JobView) -> bool:
        if view.over:
            raise CommandError(f'job "{name}" ended before it was suspended: {_why(view)}')
        return view.suspend and view.is_suspended

    if await wait_until(client, namespace, name, is_suspended, seconds=seconds) is None:
        raise CommandError(await _timeout_message(client, namespace, name, "suspended", seconds))
    emit(f"{reference(name)}: no pod runs any more, the state is saved")


async def wait_training(client: Client, namespace: str, name: str, emit: Emit, *, seconds: float, deadline: float | None = None) -> None:
    """Wait until the job trains again or is complete. If the command has waited for something else before, `deadline` is its end, by the
    event loop's clock, and `seconds` the time of the whole command, for messages."""

    def training(view: JobView) -> bool:
        if view.holds(ConditionType.FAILED):
            raise CommandError(f'job "{name}" failed: {_why(view)}')
        return view.complete or (not view.suspend and not view.is_suspended and view.holds(ConditionType.TRAINING))

    left = seconds if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
    view = await wait_until(client, namespace, name, training, seconds=left)
    if view is None:
        raise CommandError(await _timeout_message(client, namespace, name, "training", seconds))
    if view.complete:
        emit(f"{reference(name)} is complete")
    else:
        learners = view.status.learners
        count = plural(learners.desired, "learner contributes", "learners contribute")
        emit(f"{reference(name)} trains: {learners.contributing} of {count}")


def foreign_manager_note(obj: Obj) -> str:
    """A note for the user if another controller manages the job, else ""."""
    manager = str(obj["spec"].get("managedBy") or MANAGER)
    return "" if manager == MANAGER else f"note: spec.managedBy is {manager}, so that controller must act on it, not this operator"


def _why(view: JobView) -> str:
    """Reason and message of the condition that ended the job, or of the first condition that is not True."""
    ended = view.status.condition(ConditionType.FAILED) if view.holds(ConditionType.FAILED) else None
    return ended.why if ended else view.missing_condition() or "it is complete"


async def _timeout_message(client: Client, namespace: str, name: str, what: str, seconds: float) -> str:
    view = JobView.of(await find_job(client, namespace, name))
    how = f"see `kubectl diloco status {name} {view.flags}`"
    return f'job "{name}" is not {what} after {format_duration(seconds)}: {view.missing_condition()}. It may still become so; {how}'
