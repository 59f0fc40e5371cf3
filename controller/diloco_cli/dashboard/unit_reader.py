"""Reads the pods of a unit and the end of a log while the page of the unit is open.

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
"""Seconds between the readings for one page."""
_KEPT = 30.0
"""Seconds after the last look at a page until what was read for it is forgotten."""
_MOST_READ = 4 << 20
"""Bytes that are read of a log: its last lines may be long."""
_PATIENCE = 20.0
"""Seconds that a reading may take: the API server asks the node."""


class Looked(NamedTuple):
    """A page of a unit that is open."""

    namespace: str
    job: str
    unit: str
    uid: str
    """The uid of the job."""
    host: int | None
    """The host whose log is shown; None: the first one."""


@dataclass(slots=True)
class _Page:
    looked: float
    read: float = float("-inf")
    pods: UnitPods | None = None
    task: asyncio.Task[None] | None = None


class UnitReader:
    """Keeps what open pages show of pods. `changed` is called when one of them has something new to show."""

    def __init__(self, client: Client, logs: PodLogs, monotonic: Callable[[], float], changed: Callable[[], None]) -> None:
        """Read with the caller's rights. `monotonic`: a clock, in seconds."""
        self._client, self._logs, self._monotonic, self._changed = client, logs, monotonic, changed
        self._pages: dict[Looked, _Page] = {}

    def look(self, at: Looked) -> UnitPods | None:
        """Return what was read last for this page, and have it read again if that is some seconds ago. None: nothing was read yet."""
        now = self._monotonic()
        page = self._pages.setdefault(at, _Page(now))
        page.looked = now
        if page.task is None and now - page.read >= _APART:
            page.task = asyncio.create_task(self._read(at, page))
        for old in [key for key, each in self._pages.items() if now - each.looked > _KEPT and each.task is None]:
            del self._pages[old]
        return page.pods

    async def close(self) -> None:
        """End all readings."""
        tasks = [page.task for page in self._pages.values() if page.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, at: Looked, page: _Page) -> None:
        try:
            try:
                async with asyncio.timeout(_PATIENCE):
                    found = await read_unit(self._client, self._logs, at)
            except TimeoutError:
                found = UnitPods(note=f"The cluster did not answer within {_PATIENCE:.0f} s.")
            if found != page.pods:
                page.pods = found
                self._changed()
        except Exception:  # noqa: BLE001 - one page shows what it had; an unforeseen error must not end the dashboard
            _log.exception("the pods of %s could not be read", "/".join(at[:3]))
        finally:
            page.task, page.read = None, self._monotonic()


async def read_unit(client: Client, logs: PodLogs | None, at: Looked) -> UnitPods:
    """Return the pods of a unit, and the end of the log of one of them. `logs`: where logs are; None: they are left out."""
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
    """Return the end of the log, and what a reader has to know of it."""
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
