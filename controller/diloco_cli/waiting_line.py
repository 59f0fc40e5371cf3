"""The place of a job among all jobs that wait for the same hardware, in the order in which the operator serves them. Pure.

See docs/decisions/0176-explain-and-doctor.md.
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
    position: int
    """From 1."""
    of: int
    """How many jobs wait."""


@dataclass(frozen=True, slots=True, order=True)
class _Rank:
    """Jobs below their minimum come first, then the highest priority, then the oldest."""

    has_minimum: bool
    priority: int
    """Negative, so that the highest comes first."""
    created: float
    key: str


type Hardware = tuple[str, str | None]
"""Accelerator and topology."""


def places(job: Obj, jobs: Iterable[Obj], priorities: Iterable[Obj]) -> Mapping[str, Place]:
    """Places of one job by pool, see `all_places`. Empty if the job does not wait."""
    return all_places(jobs, priorities).get(job["metadata"]["uid"], {})


def all_places(jobs: Iterable[Obj], priorities: Iterable[Obj]) -> dict[str, dict[str, Place]]:
    """Place in line of each waiting pool, by the job's uid and the pool's name. `jobs` are all of the cluster, `priorities` its
    PriorityClasses."""
    listed = list(priorities)
    values = {obj["metadata"]["name"]: int(obj.get("value") or 0) for obj in listed}
    default = next((int(obj.get("value") or 0) for obj in listed if obj.get("globalDefault")), 0)
    waiting: dict[Hardware, list[_Rank]] = {}
    pools: dict[str, dict[str, tuple[Hardware, _Rank]]] = {}
    for obj in jobs:
        short = short_here(Status.model_validate(obj.get("status") or {}))
        if not short:
            continue
        try:
            spec = load(obj).spec
        except InvalidJob:
            continue
        rank = _rank(obj, spec, values.get(spec.priority_class_name, 0) if spec.priority_class_name else default)
        places = {pool.name: (_hardware(pool), rank) for pool in spec.pools if pool.name in short}
        for hardware in {hardware for hardware, _ in places.values()}:
            waiting.setdefault(hardware, []).append(rank)
        pools[obj["metadata"]["uid"]] = places
    positions = {hardware: {rank: place for place, rank in enumerate(sorted(ranks), 1)} for hardware, ranks in waiting.items()}
    return {
        uid: {pool: Place(positions[hardware][rank], len(positions[hardware])) for pool, (hardware, rank) in places.items()}
        for uid, places in pools.items()
    }


def _rank(job: Obj, spec: Spec, priority: int) -> _Rank:
    meta: Mapping[str, Any] = job["metadata"]
    placed = Status.model_validate(job.get("status") or {}).learners.placed
    created = parse_timestamp(meta["creationTimestamp"])
    return _Rank(placed >= spec.learners.min, -priority, created, f"{meta['namespace']}/{meta['name']}/{meta['uid']}")


def short_here(status: Status) -> set[str]:
    """Names of the pools that wait for hardware of this cluster. What others have, and who waits there, is not known here."""
    return {pool.name for pool in status.pools if not pool.cluster and lack_of(pool.reason).of_slices}


def _hardware(pool: Pool) -> Hardware:
    return pool.accelerator, pool.topology
