"""`kubectl diloco drain`: evict a unit's pods, so that its restart budget is not touched, and wait until it contributes again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from diloco_operator.api.durations import format_duration
from diloco_operator.api.job import UnitState, UnitStatus
from diloco_operator.api.names import KUBECTL_PLUGIN, NODES
from diloco_operator.cli.cluster import Trouble
from diloco_operator.cli.jobs import find_job, unit_of, wait_until
from diloco_operator.cli.unit_pods import UnitPod, of_newest_attempt, unit_pods
from diloco_operator.cli.view_model import JobView
from diloco_operator.kube.client import ApiError, Client, Conflict, NotFound, PatchType

RETRY_SECONDS = 5.0
"""Between two attempts at an eviction that a PodDisruptionBudget refuses, as `kubectl drain` does."""
_TOO_MANY_REQUESTS = 429

type Say = Callable[[str], None]


async def drain(
    client: Client, namespace: str, job: str, unit: str, say: Say, *, cordon: bool, wait: bool, seconds: float, retry: float = RETRY_SECONDS
) -> None:
    """Evict every pod of the unit's newest attempt; `cordon`: after its nodes were closed to new pods; `wait`: until the unit
    contributes with a later attempt, for `seconds` in all. Raises `Trouble` when there is nothing to drain or it does not come back."""
    view = JobView.of(await find_job(client, namespace, job))
    before = unit_of(view, unit)
    if view.over:
        raise Trouble(f'job "{job}" is over, its units have ended; there is nothing to drain')
    pods = of_newest_attempt(await unit_pods(client, namespace, job, unit))
    running = [pod for pod in pods if not pod.ended]
    if not running:
        raise Trouble(f"unit {unit} has no running pods to drain: {describe(before)}")
    if cordon:
        await _cordon(client, running, say)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    try:
        async with asyncio.timeout_at(deadline):
            await asyncio.gather(*(_evict(client, namespace, pod, say, retry) for pod in running))
    except TimeoutError as error:
        raise Trouble(
            f"unit {unit} could not be evicted within {format_duration(seconds)}: a PodDisruptionBudget does not allow it"
        ) from error
    if wait:
        await _wait_back(client, namespace, job, unit, pods[0].attempt, say, deadline=deadline, seconds=seconds)


def describe(unit: UnitStatus) -> str:
    """`Pending (NoCapacity: every slice is in use)`."""
    why = ": ".join(part for part in (unit.reason, unit.message) if part)
    return f"{unit.state} ({why})" if why else str(unit.state)


async def _cordon(client: Client, pods: Sequence[UnitPod], say: Say) -> None:
    for node in sorted({pod.node for pod in pods if pod.node}):
        await client.patch(NODES, "", node, {"spec": {"unschedulable": True}}, type=PatchType.MERGE, field_manager=KUBECTL_PLUGIN)
        say(f"node/{node} cordoned; `kubectl uncordon {node}` opens it again")


async def _evict(client: Client, namespace: str, pod: UnitPod, say: Say, retry: float) -> None:
    told = False
    while True:
        try:
            await client.evict(namespace, pod.name, uid=pod.uid)
        except (NotFound, Conflict):
            return  # gone already: the others of its unit are deleted as soon as one is missing
        except ApiError as error:
            if error.code != _TOO_MANY_REQUESTS:
                raise
            if not told:
                say(f"pod/{pod.name}: {error.message} Trying again every {format_duration(retry)}")
                told = True
            await asyncio.sleep(retry)
        else:
            say(f"pod/{pod.name} evicted")
            return


async def _wait_back(
    client: Client, namespace: str, job: str, unit: str, attempt: int, say: Say, *, deadline: float, seconds: float
) -> None:
    """Until the unit trains in a later attempt than `attempt`. Tells every state on the way. `seconds`: what was given in all."""
    told = ""

    def back(view: JobView) -> bool:
        nonlocal told
        if view.complete:
            return True
        if view.over or view.suspend:
            raise Trouble(f'job "{job}" {"is suspended" if view.suspend else "failed"}; unit {unit} does not come back')
        now = next((each for each in view.status.units if each.name == unit), None)
        if now is None:
            raise Trouble(f"unit {unit} is no longer wanted: the job asks for fewer learners now")
        words = f"unit {unit}: attempt {now.attempt}, {describe(now)}"
        if words != told:
            say(words)
            told = words
        if now.state is UnitState.FAILED:
            raise Trouble(f"unit {unit} does not come back: {describe(now)}")
        return now.attempt > attempt and now.state is UnitState.TRAINING

    left = max(0.0, deadline - asyncio.get_running_loop().time())
    view = await wait_until(client, namespace, job, back, seconds=left)
    if view is None:
        raise Trouble(f"unit {unit} does not contribute again after {format_duration(seconds)}; last seen: {told}")
    if view.complete:
        say(f'job "{job}" is complete')
        return
    now = unit_of(view, unit)
    took = "" if now.recover_seconds is None else f" after {now.recover_seconds:.1f} s"
    say(f"unit {unit} contributes again{took}, on {now.slice or 'an unnamed slice'}; failures on its restart budget: {len(now.failures)}")
