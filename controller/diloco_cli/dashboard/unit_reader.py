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


class Looked(NamedTuple):
    """An open page of a unit."""

    namespace: str
    job: str
    unit: str
    uid: str
    """The uid of the job."""
    host: int | None
    """The host whose log is shown, or None for the first."""


@dataclass(slots=True)
class _Page:
    looked: float
    read: float = float("-inf")
    pods: UnitPods | None = None
    task: asyncio.Task[None] | None = None


class UnitReader:
    """Keeps what open pages show of pods. It calls `changed` if a page has something new to show. `monotonic` is a clock, in seconds."""

    def __init__(self, client: Client, logs: PodLogs, monotonic: Callable[[], float], changed: Callable[[], None]) -> None:
        self._client, self._logs, self._monotonic, self._changed = client, logs, monotonic, changed
        self._pages: dict[Looked, _Page] = {}

    def look(self, at: Looked) -> UnitPods | None:
        """Return the last reading for this page, or None if there is none yet. If it is some seconds old, start a new one."""
        now = self._monotonic()
        page = self._pages.setdefault(at, _Page(now))
        page.looked = now
        if page.task is None and now - page.read >= _APART:
            page.task = asyncio.create_task(self._read(at, page))
        for old in [key for key, kept in self._pages.items() if now - kept.looked > _KEPT and kept.task is None]:
            del self._pages[old]
        return page.pods

    async def close(self) -> None:
        tasks = [page.task for page in self._pages.values() if page.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, at: Looked, page: _Page) -> None:
        try:
            try:
                async with asyncio.timeout(_PATIENCE):
                    pods = await read_unit(self._client, self._logs, at)
            except TimeoutError:
                pods = UnitPods(note=f"The cluster did not answer within {_PATIENCE:.0f} s.")
            if pods != page.pods:
                page.pods = pods
                self._changed()
        except Exception:  # noqa: BLE001 - one page shows what it had; an unforeseen error must not end the dashboard
            _log.exception("the pods of %s could not be read", "/".join(at[:3]))
        finally:
            page.task, page.read = None, self._monotonic()


async def read_unit(client: Client, logs: PodLogs | None, at: Looked) -> UnitPods:
    """Read the pods of a unit, and the end of the log of one of them. Without `logs` leave the log out."""
    try:
        listed = await client.list(PODS, at.namespace, label_selector=unit_selector(at.job, at.unit))
    except Forbidden as error:
        return UnitPods(note=f"Hosts and log are not shown, as you may not list pods: {error.message}")
    except ApiError as error:
        return UnitPods(note=f"Hosts and log are not shown: {error.message}")
    hosts = hosts_of(listed.items, at.uid)
    if not hosts:
        return UnitPods(note="It has no pods now, and so no log here. Only pods that ended by themselves stay.")
    chosen = next((host for host in hosts if host.index == at.host), None if at.host is not None else hosts[0])
    if chosen is None:
        return UnitPods(hosts, at.host or 0, note=f"It has no host {at.host} in attempt {hosts[0].attempt}.")
    log, note = await _end_of_log(logs, at.namespace, chosen) if logs is not None else ("", "")
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
