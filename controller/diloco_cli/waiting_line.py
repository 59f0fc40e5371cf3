"""The place of a job among those that wait for the same hardware, in the order in which the operator serves them. Pure.

See docs/decisions/0176-explain.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from diloco_operator.api.job import InvalidJob, load
from diloco_operator.api.reasons import lack_of
from diloco_operator.api.spec import Pool, Spec
from diloco_operator.api.status import Status
from diloco_operator.kube.client import Obj
from diloco_operator.kube.timestamps import parse_timestamp


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one job."""

    position: int
    """From 1."""
    of: int
    """Jobs that wait."""


@dataclass(frozen=True, slots=True, order=True)
class _Rank:
    """Minima come before growth, then the highest priority, then the oldest."""

    has_minimum: bool
    priority: int
    """Negative, so that the highest comes first."""
    created: float
    key: str


type Hardware = tuple[str, str | None]
"""Accelerator and topology."""


def places(job: Obj, jobs: Iterable[Obj], priorities: Iterable[Obj]) -> dict[str, Place]:
    """Find by pool the place in line of the job that waits for hardware. `jobs`: all that can be read, the job among them. `priorities`:
    PriorityClasses."""
    values = {each["metadata"]["name"]: int(each.get("value") or 0) for each in priorities}
    default = next((int(each.get("value") or 0) for each in priorities if each.get("globalDefault")), 0)
    waiting: dict[Hardware, list[_Rank]] = {}
    mine: dict[str, tuple[Hardware, _Rank]] = {}
    for each in jobs:
        try:
            spec = load(each).spec
        except InvalidJob:
            continue
        rank = _rank(each, spec, values.get(spec.priority_class_name, 0) if spec.priority_class_name else default)
        short = [pool for pool in spec.pools if pool.name in _short(each)]
        for hardware in {_hardware(pool) for pool in short}:
            waiting.setdefault(hardware, []).append(rank)
        if each["metadata"]["uid"] == job["metadata"]["uid"]:
            mine = {pool.name: (_hardware(pool), rank) for pool in short}
    found = {}
    for pool, (hardware, rank) in mine.items():
        line = sorted(waiting[hardware])
        found[pool] = Place(line.index(rank) + 1, len(line))
    return found


def _rank(job: Obj, spec: Spec, priority: int) -> _Rank:
    meta: Mapping[str, Any] = job["metadata"]
    placed = Status.model_validate(job.get("status") or {}).learners.placed
    created = parse_timestamp(meta["creationTimestamp"])
    return _Rank(placed >= spec.learners.min, -priority, created, f"{meta['namespace']}/{meta['name']}/{meta['uid']}")


def _short(job: Obj) -> set[str]:
    """Return names of its pools that wait for hardware."""
    return {pool.name for pool in Status.model_validate(job.get("status") or {}).pools if lack_of(pool.reason).of_slices}


def _hardware(pool: Pool) -> Hardware:
    return pool.accelerator, pool.topology
