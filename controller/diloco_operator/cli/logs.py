"""`kubectl diloco logs`: the logs of the pods of a unit, or of the syncer.

See docs/decisions/0141-ended-pods.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from diloco_operator.api.names import LEARNER_CONTAINER, SYNCER_CONTAINER, syncer_pod_name
from diloco_operator.cli.cluster import CommandError
from diloco_operator.cli.unit_pods import UnitPod
from diloco_operator.kube.client import ApiError, BadRequest, NotFound
from diloco_operator.kube.rest.line_splitter import LineSplitter

SYNCER = "syncer"
"""Given in place of a unit's name, it means the syncer."""

_INTERNAL_ERROR = 500

type Write = Callable[[bytes], None]


class PodLogs(Protocol):
    def pod_logs(
        self, namespace: str, name: str, *, container: str = "", follow: bool = False, tail_lines: int | None = None
    ) -> AsyncIterator[bytes]: ...


@dataclass(frozen=True, slots=True)
class Source:
    """One container whose log is printed."""

    pod: str
    container: str
    prefix: str = ""
    """Printed before every line if there are several hosts."""


def syncer_source(job: str, container: str) -> Source:
    return Source(syncer_pod_name(job), container or SYNCER_CONTAINER)


def unit_sources(unit: str, pods: Sequence[UnitPod], *, host: int | None, previous: bool, container: str) -> list[Source]:
    """One for each host of the newest attempt (`previous`: of the newest before it). Raises `CommandError` that
    says what exists."""
    attempts = sorted({pod.attempt for pod in pods})
    if not attempts:
        raise CommandError(f"unit {unit} has no pods now; `kubectl diloco units` shows why")
    if previous and len(attempts) < 2:
        raise CommandError(
            f"unit {unit} has only the pods of attempt {attempts[0]}: the pods of an ended attempt are deleted when the next one starts. "
            "Their logs are where your cluster collects logs"
        )
    attempt = attempts[-2] if previous else attempts[-1]
    chosen = [pod for pod in pods if pod.attempt == attempt and host in (None, pod.host)]
    if not chosen:
        hosts = sorted(pod.host for pod in pods if pod.attempt == attempt)
        raise CommandError(f"unit {unit} has no host {host} in attempt {attempt}; it has {', '.join(map(str, hosts))}")
    several = len(chosen) > 1
    return [Source(pod.name, container or LEARNER_CONTAINER, f"[host {pod.host}] " if several else "") for pod in chosen]


async def show_logs(client: PodLogs, namespace: str, sources: Sequence[Source], write: Write, *, follow: bool, tail: int | None) -> None:
    """Write all logs: one after the other, or with `follow` at the same time, line by line."""
    if follow:
        await asyncio.gather(*(_show(client, namespace, source, write, follow=True, tail=tail) for source in sources))
        return
    for source in sources:
        await _show(client, namespace, source, write, follow=False, tail=tail)


async def _show(client: PodLogs, namespace: str, source: Source, write: Write, *, follow: bool, tail: int | None) -> None:
    lines = LineSplitter()
    prefix = source.prefix.encode()
    try:
        async for piece in client.pod_logs(namespace, source.pod, container=source.container, follow=follow, tail_lines=tail):
            if not prefix:
                write(piece)
                continue
            for line in lines.feed(piece):
                write(prefix + line + b"\n")
    except NotFound as error:
        raise CommandError(f"there is no pod {source.pod} now; see `kubectl diloco status`") from error
    except BadRequest as error:
        raise CommandError(f"pod {source.pod} has no log: {error.message}") from error
    except ApiError as error:
        if error.code != _INTERNAL_ERROR:
            raise
        # The API server asks the node's kubelet, and answers this if the kubelet does not.
        raise CommandError(f"the node of pod {source.pod} does not give its log: {error.message}") from error
    if lines.rest:
        write(prefix + lines.rest + b"\n")
