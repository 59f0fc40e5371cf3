"""Reports as syncers would give them: every unit whose pods all run contributes, at the speed that it had before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from diloco import contract
from diloco_operator.api import names
from diloco_operator.api.names import JobKey
from diloco_operator.kube.client import Obj
from diloco_operator.report import PartState, Report, ReportFault, UnitPhase, UnitReport
from diloco_operator.telemetry.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class Known:
    """What the job's status said before the preview."""

    t: int = 0
    """Outer steps done."""
    steps: int = 0
    tokens: int = 0
    units: Mapping[str, UnitReport] = field(default_factory=dict)


class Reports:
    """Implements `Telemetry` without syncers. `now`: seconds since the epoch."""

    def __init__(self, pods_of: Callable[[JobKey], Iterable[Obj]], now: Callable[[], float]) -> None:
        self._pods_of = pods_of
        self._now = now
        self._known: dict[JobKey, Known] = {}
        self._followed: set[JobKey] = set()
        self._notify: list[Callable[[JobKey], None]] = []

    def know(self, key: JobKey, known: Known) -> None:
        """Note what the job's syncer continues from."""
        self._known[key] = known

    def on_change(self, notify: Callable[[JobKey], None]) -> None:
        self._notify.append(notify)

    def follow(self, key: JobKey, endpoint: Endpoint | None) -> None:
        if endpoint is None:
            self._followed.discard(key)
        elif key not in self._followed:
            self._followed.add(key)
            asyncio.get_running_loop().call_soon(self.changed, key)

    def tell(self, key: JobKey, state: PartState) -> None: ...

    def forget(self, key: JobKey) -> None:
        self._followed.discard(key)

    def latest(self, key: JobKey) -> Report | None:
        if key not in self._followed:
            return None
        known = self._known.get(key, Known())
        units = {}
        for unit, attempt in complete_units(self._pods_of(key)).items():
            before = known.units.get(unit, UnitReport(unit, attempt, UnitPhase.CONTRIBUTING, steps=1, tokens=1, contributions=1))
            speed = before.tokens_per_second if before.attempt == attempt else 0.0
            units[unit] = UnitReport(
                unit, attempt, UnitPhase.CONTRIBUTING, steps=before.steps, tokens=before.tokens, weight=before.weight,
                contributions=max(1, before.contributions), tokens_per_second=speed, holds_parameters=True,
            )  # fmt: skip
        speed = sum(unit.tokens_per_second for unit in units.values())
        return Report(self._now(), known.t, known.steps, tokens=known.tokens, tokens_per_second=speed, seeded=True, units=units)

    def fault(self, key: JobKey) -> ReportFault | None:
        return None

    async def close(self) -> None:
        self._followed.clear()

    def changed(self, key: JobKey) -> None:
        """Note that one of the job's pods changed."""
        if key in self._followed:
            for notify in self._notify:
                notify(key)


def complete_units(pods: Iterable[Obj]) -> dict[str, int]:
    """Unit -> attempt, for the units whose hosts all run."""
    hosts: dict[tuple[str, int], list[int]] = {}
    for pod in pods:
        labels = pod["metadata"]["labels"]
        runs = pod.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        attempt = labels.get(names.LABEL_ATTEMPT, "")
        if runs and labels.get(names.LABEL_COMPONENT) == names.COMPONENT_LEARNER and attempt.isdecimal():
            hosts.setdefault((labels.get(names.LABEL_UNIT, ""), int(attempt)), []).append(_hosts_of(pod))
    return {unit: attempt for (unit, attempt), wanted in sorted(hosts.items()) if len(wanted) == wanted[0]}


def _hosts_of(pod: Obj) -> int:
    """The number of hosts of the pod's unit, from its environment. 0 if the environment does not have it."""
    for container in pod["spec"]["containers"]:
        for variable in container.get("env") or ():
            if variable["name"] == contract.ENV_HOSTS:
                value = str(variable.get("value") or "")
                return int(value) if value.isdecimal() else 0
    return 0
