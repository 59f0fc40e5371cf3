"""`kubectl diloco drain`: evict a unit's pods, which does not use its restart budget, and wait until it contributes again.

See docs/decisions/0052-drain-and-retry.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diloco_operator.api.durations import format_duration
from diloco_operator.api.names import KUBECTL_PLUGIN, NODES
from diloco_operator.api.status import UnitState, UnitStatus
from diloco_operator.kube.client import ApiError, Client, Conflict, NotFound

from diloco_cli.cluster import CommandError
from diloco_cli.jobs import find_job, unit_of, wait_until
from diloco_cli.unit_pods import UnitPod, of_newest_attempt, unit_pods
from diloco_cli.view_model import JobView, flag_of

RETRY_SECONDS = 5.0
"""Time between two attempts of an eviction that a PodDisruptionBudget rejects, as in `kubectl drain`."""
_TOO_MANY_REQUESTS = 429
_BUDGET_HINT = (
    "see `kubectl get pdb`. maxUnavailable and percentages count learners of the job by its scale, and not pods: give the budget a whole "
    "number as minAvailable (docs/stopping.md)"
)

type Emit = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DrainedUnit:
    namespace: str
    job: str
    name: str
    context: str = ""
    """See `JobView`."""


async def drain(client: Client, unit: DrainedUnit, emit: Emit, *, cordon: bool, wait: bool, seconds: float) -> None:
    """Evict every pod of the unit's newest attempt. `cordon` cordons its nodes first, and `wait` waits until the unit contributes with a
    later attempt, all within `seconds`. Raises `CommandError` if there is nothing to drain or the unit does not come back."""
    job = await find_job(client, unit.namespace, unit.job)
    view = JobView.of(job)
    before = unit_of(view, unit.name)
    if view.over:
        raise CommandError(f'job "{unit.job}" has ended, so there is nothing to drain')
    pods = of_newest_attempt(await unit_pods(client, job, unit.name))
    running = [pod for pod in pods if not pod.ended]
    if not running:
        raise CommandError(f"unit {unit.name} has no running pods to drain: {describe(before)}")
    if cordon:
        await _cordon(client, running, flag_of(unit.context), emit)
    begun = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(begun + seconds):
            await asyncio.gather(*(_evict(client, unit.namespace, pod, emit) for pod in running))
    except TimeoutError as error:
        raise CommandError(
            f"unit {unit.name} could not be evicted within {format_duration(seconds)}: a PodDisruptionBudget does not allow it; "
            f"{_BUDGET_HINT}"
        ) from error
    if wait:
        await _wait_back(client, unit, pods[0].attempt, emit, begun=begun, seconds=seconds)


def describe(unit: UnitStatus) -> str:
    """State and reason of a unit: `Pending (NoCapacity: every slice is in use)`."""
    why = ": ".join(part for part in (unit.reason, unit.message) if part)
    return f"{unit.state} ({why})" if why else str(unit.state)


async def _cordon(client: Client, pods: Sequence[UnitPod], flag: str, emit: Emit) -> None:
    for node in sorted({pod.node for pod in pods if pod.node}):
        await client.patch(NODES, "", node, {"spec": {"unschedulable": True}}, field_manager=KUBECTL_PLUGIN)
        emit(f"node/{node} cordoned; undo it with `kubectl uncordon {node}{flag}`")


async def _evict(client: Client, namespace: str, pod: UnitPod, emit: Emit) -> None:
    reported = False
    while True:
        try:
            await client.evict(namespace, pod.name, uid=pod.uid)
        except (NotFound, Conflict):
            return  # gone already, because the operator deletes a unit's other pods as soon as one is missing
        except ApiError as error:
            if error.code != _TOO_MANY_REQUESTS:
                raise
            if not reported:
                emit(f"pod/{pod.name}: {error.message} Trying again every {format_duration(RETRY_SECONDS)}")
                reported = True
            await asyncio.sleep(RETRY_SECONDS)
        else:
            emit(f"pod/{pod.name} evicted")
            return


async def _wait_back(client: Client, unit: DrainedUnit, attempt: int, emit: Emit, *, begun: float, seconds: float) -> None:
    """Wait until the unit trains in a later attempt than `attempt`, and emit every state on the way.

    Args:
        begun: when the drain began, on the event loop's clock
        seconds: time for the whole drain
    """
    last = ""

    def emit_state(view: JobView) -> bool:
        nonlocal last
        if view.complete:
            return True
        if view.over or view.suspend:
            raise CommandError(f'job "{unit.job}" {"is suspended" if view.suspend else "failed"}; unit {unit.name} does not come back')
        now = view.status.unit(unit.name)
        if now is None:
            raise CommandError(f"unit {unit.name} is no longer desired: the job asks for fewer learners now")
        text = f"unit {unit.name}: attempt {now.attempt}, {describe(now)}"
        if text != last:
            emit(text)
            last = text
        if now.state is UnitState.FAILED:
            raise CommandError(f"unit {unit.name} does not come back: {describe(now)}")
        return now.attempt > attempt and now.state is UnitState.TRAINING

    left = max(0.0, begun + seconds - asyncio.get_running_loop().time())
    view = await wait_until(client, unit.namespace, unit.job, emit_state, seconds=left)
    if view is None:
        raise CommandError(f"unit {unit.name} does not contribute again after {format_duration(seconds)}; last seen: {last}")
    if view.complete:
        emit(f'job "{unit.job}" is complete')
        return
    now = unit_of(view, unit.name)
    took = "" if now.recover_seconds is None else f" after {now.recover_seconds:.1f} s"
    where = now.slice or "an unnamed slice"
    emit(f"unit {unit.name} contributes again{took}, on {where}; failures on its restart budget: {len(now.failures)}")
