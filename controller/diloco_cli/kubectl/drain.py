"""`kubectl diloco drain`: evict a unit's pods, which does not use its restart budget, and wait until it contributes again.

See docs/decisions/0052-drain-and-retry.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from diloco_operator.api.durations import format_duration
from diloco_operator.api.names import KUBECTL_PLUGIN, NODES
from diloco_operator.api.status import UnitState, UnitStatus
from diloco_operator.kube.client import ApiError, Client, Conflict, NotFound

from diloco_cli.cluster import CommandError
from diloco_cli.jobs import find_job, unit_of, wait_until
from diloco_cli.unit_pods import UnitPod, of_newest_attempt, unit_pods
from diloco_cli.view_model import JobView

RETRY_SECONDS = 5.0
"""Time between two attempts of an eviction that a PodDisruptionBudget rejects, as in `kubectl drain`."""
_TOO_MANY_REQUESTS = 429
_BUDGET_HINT = (
    "see `kubectl get pdb`. maxUnavailable and percentages count learners of the job by its scale, and not pods: give the budget a whole "
    "number as minAvailable (docs/stopping.md)"
)

type Emit = Callable[[str], None]


async def drain(
    client: Client,
    namespace: str,
    job: str,
    unit: str,
    emit: Emit,
    *,
    cordon: bool,
    wait: bool,
    seconds: float,
    retry: float = RETRY_SECONDS,
) -> None:  # fmt: skip
    """Evict every pod of the unit's newest attempt. `cordon` cordons its nodes first, and `wait` waits until the unit contributes with a
    later attempt, all within `seconds`. Raises `CommandError` if there is nothing to drain or the unit does not come back."""
    view = JobView.of(await find_job(client, namespace, job))
    before = unit_of(view, unit)
    if view.over:
        raise CommandError(f'job "{job}" has ended, so there is nothing to drain')
    pods = of_newest_attempt(await unit_pods(client, namespace, job, unit))
    running = [pod for pod in pods if not pod.ended]
    if not running:
        raise CommandError(f"unit {unit} has no running pods to drain: {describe(before)}")
    if cordon:
        await _cordon(client, running, emit)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    try:
        async with asyncio.timeout_at(deadline):
            await asyncio.gather(*(_evict(client, namespace, pod, emit, retry) for pod in running))
    except TimeoutError as error:
        raise CommandError(
            f"unit {unit} could not be evicted within {format_duration(seconds)}: a PodDisruptionBudget does not allow it; {_BUDGET_HINT}"
        ) from error
    if wait:
        await _wait_back(client, namespace, job, unit, pods[0].attempt, emit, deadline=deadline, seconds=seconds)


def describe(unit: UnitStatus) -> str:
    """State and reason of a unit: `Pending (NoCapacity: every slice is in use)`."""
    why = ": ".join(part for part in (unit.reason, unit.message) if part)
    return f"{unit.state} ({why})" if why else str(unit.state)


async def _cordon(client: Client, pods: Sequence[UnitPod], emit: Emit) -> None:
    for node in sorted({pod.node for pod in pods if pod.node}):
        await client.patch(NODES, "", node, {"spec": {"unschedulable": True}}, field_manager=KUBECTL_PLUGIN)
        emit(f"node/{node} cordoned; undo it with `kubectl uncordon {node}`")


async def _evict(client: Client, namespace: str, pod: UnitPod, emit: Emit, retry: float) -> None:
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
                emit(f"pod/{pod.name}: {error.message} Trying again every {format_duration(retry)}")
                reported = True
            await asyncio.sleep(retry)
        else:
            emit(f"pod/{pod.name} evicted")
            return


async def _wait_back(
    client: Client, namespace: str, job: str, unit: str, attempt: int, emit: Emit, *, deadline: float, seconds: float
) -> None:
    """Wait until the unit trains in a later attempt than `attempt`, and emit every state on the way. `seconds` is the time of the whole
    drain, for messages."""
    last = ""

    def emit_state(view: JobView) -> bool:
        nonlocal last
        if view.complete:
            return True
        if view.over or view.suspend:
            raise CommandError(f'job "{job}" {"is suspended" if view.suspend else "failed"}; unit {unit} does not come back')
        now = next((status for status in view.status.units if status.name == unit), None)
        if now is None:
            raise CommandError(f"unit {unit} is no longer desired: the job asks for fewer learners now")
        text = f"unit {unit}: attempt {now.attempt}, {describe(now)}"
        if text != last:
            emit(text)
            last = text
        if now.state is UnitState.FAILED:
            raise CommandError(f"unit {unit} does not come back: {describe(now)}")
        return now.attempt > attempt and now.state is UnitState.TRAINING

    left = max(0.0, deadline - asyncio.get_running_loop().time())
    view = await wait_until(client, namespace, job, emit_state, seconds=left)
    if view is None:
        raise CommandError(f"unit {unit} does not contribute again after {format_duration(seconds)}; last seen: {last}")
    if view.complete:
        emit(f'job "{job}" is complete')
        return
    now = unit_of(view, unit)
    took = "" if now.recover_seconds is None else f" after {now.recover_seconds:.1f} s"
    emit(f"unit {unit} contributes again{took}, on {now.slice or 'an unnamed slice'}; failures on its restart budget: {len(now.failures)}")
