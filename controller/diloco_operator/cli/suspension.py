"""`kubectl diloco suspend` and `resume`: spec.suspend, and waiting for what comes of it."""

from __future__ import annotations

from collections.abc import Callable

from diloco_operator.api.conditions import ConditionType
from diloco_operator.api.durations import format_duration
from diloco_operator.api.names import DILOCO_JOBS, KUBECTL_PLUGIN, MANAGER
from diloco_operator.cli.cluster import Trouble
from diloco_operator.cli.jobs import find_job, wait_until
from diloco_operator.cli.view_model import JobView
from diloco_operator.kube.client import Client, Obj, PatchType

type Say = Callable[[str], None]


async def set_suspend(client: Client, namespace: str, name: str, say: Say, *, suspend: bool) -> None:
    """Write spec.suspend, and tell. Says so, too, where it makes no difference. Raises `Trouble` for a job that is over."""
    obj = await find_job(client, namespace, name)
    view = JobView.of(obj)
    word = "suspended" if suspend else "resumed"
    if view.over:
        how = "complete" if view.complete else "failed"
        raise Trouble(f'job "{name}" is {how} already and cannot be {word}')
    if view.suspend == suspend:
        say(f"{_who(name)} {'is suspended already' if suspend else 'is not suspended'}")
    else:
        await client.patch(DILOCO_JOBS, namespace, name, {"spec": {"suspend": suspend}}, type=PatchType.MERGE, field_manager=KUBECTL_PLUGIN)
        say(f"{_who(name)} {word}")
    if foreign := _foreign_manager(obj):
        say(f"note: spec.managedBy is {foreign}, so it is for that controller, not for this operator, to act on it")


async def wait_suspended(client: Client, namespace: str, name: str, say: Say, *, seconds: float) -> None:
    """Until every pod has gone and the state is kept."""

    def parked(view: JobView) -> bool:
        if view.over:
            raise Trouble(f'job "{name}" came to its end before it could be suspended: {_why(view)}')
        return view.suspend and view.parked

    if await wait_until(client, namespace, name, parked, seconds=seconds) is None:
        raise Trouble(await _late(client, namespace, name, "suspended", seconds))
    say(f"{_who(name)}: every pod has gone, the state is kept")


async def wait_training(client: Client, namespace: str, name: str, say: Say, *, seconds: float) -> None:
    """Until outer steps go on again (or the job is complete)."""

    def training(view: JobView) -> bool:
        if view.holds(ConditionType.FAILED):
            raise Trouble(f'job "{name}" failed: {_why(view)}')
        return view.complete or (not view.suspend and not view.parked and view.holds(ConditionType.TRAINING))

    view = await wait_until(client, namespace, name, training, seconds=seconds)
    if view is None:
        raise Trouble(await _late(client, namespace, name, "training", seconds))
    if view.complete:
        say(f"{_who(name)} is complete")
    else:
        learners = view.status.learners
        say(f"{_who(name)} trains: {learners.contributing} of {learners.desired} learners contribute")


def _who(name: str) -> str:
    return f"{DILOCO_JOBS.kind.lower()}.{DILOCO_JOBS.group}/{name}"


def _foreign_manager(obj: Obj) -> str:
    manager = str(obj["spec"].get("managedBy") or MANAGER)
    return "" if manager == MANAGER else manager


def _why(view: JobView) -> str:
    """The words of the condition that ended it, or of the first that does not hold."""
    ended = next((c for c in view.status.conditions if c.type == ConditionType.FAILED and c.status.value == "True"), None)
    return f"{ended.reason}: {ended.message}" if ended else view.unreached() or "it is complete"


async def _late(client: Client, namespace: str, name: str, what: str, seconds: float) -> str:
    view = JobView.of(await find_job(client, namespace, name))
    how = f"see `kubectl diloco status {name}`"
    return f'job "{name}" is not {what} after {format_duration(seconds)}: {view.unreached()}. It may still come; {how}'
