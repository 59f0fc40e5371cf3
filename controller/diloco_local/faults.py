"""Fault injection: a signal goes to the processes of a unit when the job reaches an outer step. Each fault fires once, or is reported as
not fired."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from diloco_operator.api import names
from diloco_operator.api.names import DILOCO_JOBS, PODS
from diloco_operator.kube.cache import as_it_is
from diloco_operator.kube.client import Client, Obj
from diloco_operator.kube.reflector import Reflector, WatchedResource

from diloco_local.kubelet import Kubelet

log = logging.getLogger(__name__)

SIGNALS = {name: getattr(signal, f"SIG{name}") for name in ("KILL", "TERM", "STOP", "CONT")}
"""By name: a crash, a drain, a hang, and the end of a hang."""
_FORM = "unit=NAME,step=N,signal=KILL|TERM|STOP|CONT[,job=NAME]"
"""How to write a fault. Messages about a fault that is written otherwise show this."""


class BadFault(ValueError):
    """A fault that is not valid; the message says what is wrong and shows the form."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Send `signal` to the processes of `unit` (`syncer` means the syncer) once the job's status shows outer step `step`. TERM goes to the
    main process of each container, as a kubelet sends it; any other signal goes to all processes."""

    unit: str
    step: int
    signal: str = "KILL"
    job: str = ""
    """"" means any job that has such a unit."""

    def __str__(self) -> str:
        job = f",job={self.job}" if self.job else ""
        return f"unit={self.unit},step={self.step},signal={self.signal}{job}"


@dataclass(frozen=True, slots=True)
class Fired:
    """A fault that was fired."""

    fault: Fault
    namespace: str
    job: str
    pod: str
    step: int
    """The outer step in the status when it fired."""
    at: float
    """Seconds since the epoch, just before the signal was sent."""


def parse(text: str) -> Fault:
    """Parse `unit=v5p-0,step=60,signal=KILL`. Raises BadFault."""
    fields: dict[str, str] = {}
    for part in text.split(","):
        name, separator, value = part.strip().partition("=")
        if not separator or not value or name not in ("unit", "step", "signal", "job"):
            raise BadFault(f"{part!r} in fault {text!r} is not valid; write {_FORM}")
        if name in fields:
            raise BadFault(f"{name} is given twice in fault {text!r}")
        fields[name] = value
    if missing := [name for name in ("unit", "step") if name not in fields]:
        raise BadFault(f"fault {text!r} lacks {' and '.join(missing)}; write {_FORM}")
    if not re.fullmatch(r"\d+", fields["step"]):
        raise BadFault(f"step in fault {text!r} must be an outer step, a whole number from 0")
    name = fields.get("signal", "KILL").upper().removeprefix("SIG")
    if name not in SIGNALS:
        raise BadFault(f"signal in fault {text!r} must be one of {', '.join(SIGNALS)}")
    return Fault(fields["unit"], int(fields["step"]), name, fields.get("job", ""))


def unknown_units(faults: Iterable[Fault], jobs: Sequence[Obj]) -> list[str]:
    """A sentence for each fault whose unit none of the jobs can have."""
    sentences = []
    for fault in faults:
        pools = sorted({pool["name"] for job in jobs for pool in job["spec"]["pools"] if fault.job in ("", job["metadata"]["name"])})
        pool, _, index = fault.unit.rpartition("-")
        if fault.unit != names.COMPONENT_SYNCER and not (pool in pools and index.isdigit()):
            known = ", ".join(pools) or "none"
            sentences.append(f"fault {fault}: no job has a unit {fault.unit!r}; units are syncer and POOL-INDEX with POOL one of: {known}")
    return sentences


def due(faults: Iterable[Fault], job: str, step: int) -> list[Fault]:
    """The faults whose step this job has reached. Pure."""
    return [fault for fault in faults if fault.job in ("", job) and step >= fault.step]


def target_pod(pods: Iterable[Obj], job: str, unit: str) -> Obj | None:
    """The pod that gets the signal: host 0 of the unit's newest attempt, or the syncer. None if it does not run. Pure."""

    def fits(pod: Obj) -> bool:
        labels: Mapping[str, str] = pod["metadata"].get("labels") or {}
        if labels.get(names.LABEL_JOB) != job or pod.get("status", {}).get("phase") != "Running":
            return False
        if unit == names.COMPONENT_SYNCER:
            return labels.get(names.LABEL_COMPONENT) == names.COMPONENT_SYNCER
        return labels.get(names.LABEL_UNIT) == unit and labels.get(names.LABEL_HOST, "0") == "0"

    running = [pod for pod in pods if fits(pod)]
    return max(running, key=lambda pod: int(pod["metadata"]["labels"].get(names.LABEL_ATTEMPT, "0")), default=None)


class FaultInjector:
    """Watches the jobs' steps and fires. A unit that does not run at its step gets the signal as soon as it runs."""

    def __init__(
        self,
        client: Client,
        kubelet: Kubelet,
        faults: Sequence[Fault],
        on_fired: Callable[[Fired], None] = lambda _: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._kubelet = kubelet
        self._on_fired = on_fired
        self._now = now
        self.waiting: list[Fault] = list(faults)
        """Faults that have not fired yet, in the order given."""
        self.fired: list[Fired] = []
        self._wake = asyncio.Event()
        self._jobs = Reflector(client, WatchedResource(DILOCO_JOBS, as_it_is), rng=random.random)
        self._pods = Reflector(client, WatchedResource(PODS, as_it_is), rng=random.random)
        for reflector in (self._jobs, self._pods):
            reflector.on_change(lambda _old, _new: self._wake.set())

    async def run(self) -> None:
        """Run until every fault has fired, or cancelled."""
        if not self.waiting:
            return
        following = [asyncio.create_task(reflector.run()) for reflector in (self._jobs, self._pods)]
        try:
            while self.waiting:
                await self._wake.wait()
                self._wake.clear()
                await self._fire_due()
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    async def _fire_due(self) -> None:
        for held in self._jobs.cache:
            step = (held.value.get("status", {}).get("progress") or {}).get("step", 0)
            for fault in due(self.waiting, held.name, step):
                pods = [pod.value for pod in self._pods.cache if pod.namespace == held.namespace]
                pod = target_pod(pods, held.name, fault.unit)
                if pod is None:
                    continue
                name, at = pod["metadata"]["name"], self._now()
                # False if the pod has ended since the cache saw it run. The fault then waits for the next pod.
                if await self._kubelet.signal(held.namespace, name, SIGNALS[fault.signal]):
                    self.waiting.remove(fault)
                    fired = Fired(fault, held.namespace, held.name, name, step, at)
                    self.fired.append(fired)
                    log.info("fault fired: SIG%s to pod %s at outer step %d", fault.signal, name, step)
                    self._on_fired(fired)
