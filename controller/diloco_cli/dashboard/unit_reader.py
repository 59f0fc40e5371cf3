"""Reads the pods of a unit and the end of a log while the unit's page is open.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from diloco_operator.api.names import LEARNER_CONTAINER, PODS
from diloco_operator.kube.client import ApiError, Client, Forbidden

from diloco_cli.cluster import CommandError
from diloco_cli.dashboard.unit_pods import LOG_BYTES, LOG_LINES, Host, UnitPods, end_of, hosts_of
from diloco_cli.pod_logs import PodLogs, Source, log_pieces
from diloco_cli.unit_pods import unit_selector

_log = logging.getLogger(__name__)

_APART = 5.0
"""Seconds between two readings for one page."""
_KEPT = 30.0
"""Seconds without a look at a page after which its reading is forgotten."""
_MOST_READ = 4 << 20
"""Most bytes of a log that are read, since its last lines may be long."""
_PATIENCE = 20.0
"""Seconds that a reading may take. It may be slow, because the API server gets the log from the node."""


class OpenPage(NamedTuple):
    """An open page of a unit."""

    namespace: str
    job: str
    unit: str
    uid: str
    """The uid of the job."""
    host: int | None
    """The host whose log is shown, or None for the first."""


@dataclass(slots=True)
class _Reading:
    seen_at: float
    """When a browser last asked for the page."""
    read_at: float = float("-inf")
    """When the last reading ended."""
    pods: UnitPods | None = None
    task: asyncio.Task[None] | None = None


class UnitReader:
    """Keeps what open pages show of pods. It calls `changed` if a page has something new to show. `monotonic` is a clock, in seconds."""

    def __init__(self, client: Client, logs: PodLogs, monotonic: Callable[[], float], changed: Callable[[], None]) -> None:
        self._client, self._logs, self._monotonic, self._changed = client, logs, monotonic, changed
        self._readings: dict[OpenPage, _Reading] = {}

    def look(self, page: OpenPage) -> UnitPods | None:
        """Return the last reading for this page, or None if there is none yet. If it is some seconds old, start a new one."""
        now = self._monotonic()
        reading = self._readings.setdefault(page, _Reading(now))
        reading.seen_at = now
        if reading.task is None and now - reading.read_at >= _APART:
            reading.task = asyncio.create_task(self._read(page, reading))
        for closed in [key for key, other in self._readings.items() if now - other.seen_at > _KEPT and other.task is None]:
            del self._readings[closed]
        return reading.pods

    async def close(self) -> None:
        tasks = [reading.task for reading in self._readings.values() if reading.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, page: OpenPage, reading: _Reading) -> None:
        try:
            try:
                async with asyncio.timeout(_PATIENCE):
                    pods = await read_unit(self._client, self._logs, page)
            except TimeoutError:
                pods = UnitPods(note=f"The cluster did not answer within {_PATIENCE:.0f} s.")
            if pods != reading.pods:
                reading.pods = pods
                self._changed()
        except Exception:  # noqa: BLE001 - one page shows what it had; an unforeseen error must not end the dashboard
            _log.exception("the pods of %s could not be read", "/".join(page[:3]))
        finally:
            reading.task, reading.read_at = None, self._monotonic()


async def read_unit(client: Client, logs: PodLogs | None, page: OpenPage) -> UnitPods:
    """Read the pods of a unit, and the end of the log of one of them. Without `logs` leave the log out."""
    try:
        listed = await client.list(PODS, page.namespace, label_selector=unit_selector(page.job, page.unit))
    except Forbidden as error:
        return UnitPods(note=f"Hosts and log are not shown, as you may not list pods: {error.message}")
    except ApiError as error:
        return UnitPods(note=f"Hosts and log are not shown: {error.message}")
    hosts = hosts_of(listed.items, page.uid)
    if not hosts:
        return UnitPods(note="It has no pods now, and so no log here. Only pods that ended by themselves stay.")
    chosen = next((host for host in hosts if host.index == page.host), None if page.host is not None else hosts[0])
    if chosen is None:
        return UnitPods(hosts, page.host or 0, note=f"It has no host {page.host} in attempt {hosts[0].attempt}.")
    log, note = await _end_of_log(logs, page.namespace, chosen) if logs is not None else ("", "")
    return UnitPods(hosts, chosen.index, log, note)


async def _end_of_log(logs: PodLogs, namespace: str, host: Host) -> tuple[str, str]:
    """Read the end of the log, and return it with a note for the reader ("" for none)."""
    source = Source(host.pod, LEARNER_CONTAINER, no_pod="it has just ended or was replaced")
    end, read = b"", 0
    try:
        async with aclosing(log_pieces(logs, namespace, source, follow=False, tail=LOG_LINES)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                end = (end + piece)[-LOG_BYTES:]
                read += len(piece)
                if read >= _MOST_READ:
                    return end_of(end), f"Its last {LOG_LINES} lines are too long: this is not their end."
    except CommandError as error:
        return "", f"There is no log: {error.message}"
    except Forbidden as error:
        return "", f"The log is not shown, as you may not get pods/log: {error.message}"
    except ApiError as error:
        return "", f"The log is not shown: {error.message}"
    return end_of(end), "" if end else "The log is empty."
