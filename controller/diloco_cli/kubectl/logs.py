"""`kubectl diloco logs`: the logs of the pods of a unit, or of the syncer.

See docs/decisions/0040-learner-pods.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from diloco_operator.api.names import LEARNER_CONTAINER, SYNCER_CONTAINER, syncer_pod_name
from diloco_operator.api.status import UnitStatus
from diloco_operator.kube.client import Client

from diloco_cli.cluster import CommandError
from diloco_cli.dominant import at_home
from diloco_cli.jobs import find_job, unit_of
from diloco_cli.kubectl.drain import describe
from diloco_cli.pod_logs import PodLogs, Source, log_pieces
from diloco_cli.status_text import headline
from diloco_cli.unit_pods import UnitPod, unit_pods
from diloco_cli.view_model import JobView

SYNCER = "syncer"
"""Stands for the syncer in place of a unit's name."""

type Write = Callable[[bytes], None]


class UnitLogs(NamedTuple):
    """Pods whose log is printed for a unit."""

    sources: Sequence[Source]
    note: str = ""
    """What the user should know about these logs, or ""."""


def syncer_source(view: JobView, container: str, *, previous: bool = False) -> Source:
    """The syncer's log. The syncer restarts within its pod, and `previous` chooses its run before the last restart there."""
    name = syncer_pod_name(view.name)
    instead = f". {_PREVIOUS_RUN}" if previous else ""
    return Source(name, container or SYNCER_CONTAINER, previous=previous, instead=instead, no_pod=_why_no_syncer(view))


_PREVIOUS_RUN = (
    "-p prints the syncer's run before its last restart in the same pod; a pod that was replaced took its log along. Leave out -p to print "
    "the present run"
)
_COLLECTED = "It took its log along: older logs are where your cluster collects logs"


def _why_no_syncer(view: JobView) -> str:
    if view.status.home is not None and view.status.home.name:
        return f"a part has none; {at_home(view, 'logs', f'{SYNCER} ')}"
    if view.is_suspended or view.suspend:
        return (
            f"the job is suspended, so its pod was deleted. {_COLLECTED}. `kubectl diloco resume {view.name} {view.flags}` starts a new one"
        )
    if view.over:
        return f"the job has ended, and its pod was deleted. {_COLLECTED}"
    return f"the operator creates one when the job can run: {headline(view).rstrip('.')}. A pod that was replaced took its log along"


def unit_logs(
    unit: str, record: UnitStatus | None, pods: Sequence[UnitPod], *, host: int | None, previous: bool, container: str
) -> UnitLogs:
    """Choose the logs of the newest attempt that has pods, a source for each host. `previous` leaves out the unit's newest attempt.
    `record` is the unit's status, or None if there is none. Raises `CommandError` that says what exists, and why not more."""
    attempts = sorted({pod.attempt for pod in pods})
    if not attempts:
        raise CommandError(_why_no_pods(unit, record))
    newest = max(attempts[-1], record.attempt if record is not None else 0)
    earlier = [attempt for attempt in attempts if attempt < newest]
    if previous and not earlier:
        raise CommandError(_why_no_earlier(unit, record, newest))
    attempt = earlier[-1] if previous else attempts[-1]
    chosen = [pod for pod in pods if pod.attempt == attempt and host in (None, pod.host)]
    if not chosen:
        hosts = sorted(pod.host for pod in pods if pod.attempt == attempt)
        raise CommandError(f"unit {unit} has no host {host} in attempt {attempt}; it has {', '.join(map(str, hosts))}")
    instead = f"; -p prints that of attempt {earlier[-1]}" if earlier and not previous and attempt == newest else ""
    several = len(chosen) > 1
    sources = [
        Source(pod.name, container or LEARNER_CONTAINER, f"[host {pod.host}] " if several else "", instead=instead) for pod in chosen
    ]
    note = f"attempt {newest} of {unit} has no pods; this is the log of attempt {attempt}" if not previous and attempt < newest else ""
    return UnitLogs(sources, note)


async def logs_of(client: Client, namespace: str, job: str, unit: str, *, host: int | None, previous: bool, container: str) -> UnitLogs:
    """Choose the logs of a unit, or of the syncer if `unit` is `SYNCER`. Raises `CommandError` that says what exists."""
    obj = await find_job(client, namespace, job)
    view = JobView.of(obj)
    if unit == SYNCER:
        return UnitLogs([syncer_source(view, container, previous=previous)])
    pods = await unit_pods(client, obj, unit)
    record = view.status.unit(unit)
    if not pods:
        unit_of(view, unit)  # a wrong name gets another message than a unit without pods
    return unit_logs(unit, record, pods, host=host, previous=previous, container=container)


_ELSEWHERE = "Only pods that ended by themselves stay; other logs are where your cluster collects logs"


def _why_no_pods(unit: str, record: UnitStatus | None) -> str:
    if record is None or record.attempt == 0:
        return f"unit {unit} has never run, so it has no log" + (f": {describe(record)}" if record is not None else "")
    return f"unit {unit} has no pods now: attempt {record.attempt} was its last, and it is {describe(record)}. {_ELSEWHERE}"


def _why_no_earlier(unit: str, record: UnitStatus | None, newest: int) -> str:
    failed = (record.failed_attempt or 0) if record is not None else 0
    only = f"unit {unit} has only the pods of attempt {newest}"
    if newest == 1:
        return f"{only}, its first; leave out -p to print their log"
    if failed == newest:
        return f"{only}, which failed; leave out -p to print their log"
    if failed:
        return f"{only}: attempt {failed} failed, but none of its pods is there any more. {_ELSEWHERE}"
    return f"{only}: none before has failed. {_ELSEWHERE}"


async def show_logs(client: PodLogs, namespace: str, sources: Sequence[Source], write: Write, *, follow: bool, tail: int | None) -> None:
    """Write all logs, one after the other. With `follow` write them at the same time, line by line."""
    if follow:
        await asyncio.gather(*(_show(client, namespace, source, write, follow=True, tail=tail) for source in sources))
        return
    for source in sources:
        await _show(client, namespace, source, write, follow=False, tail=tail)


async def _show(client: PodLogs, namespace: str, source: Source, write: Write, *, follow: bool, tail: int | None) -> None:
    async for piece in log_pieces(client, namespace, source, follow=follow, tail=tail):
        write(piece)
