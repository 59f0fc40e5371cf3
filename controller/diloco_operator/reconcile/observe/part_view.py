"""What is known of a part that this operator has made in another cluster: its DiLoCoJob there, projected once. Pure.

See docs/decisions/0284-parts-in-other-clusters.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diloco_operator.api import names
from diloco_operator.api.state import JobState
from diloco_operator.api.status import MOST_TOKENS_PER_SECOND
from diloco_operator.kube.client import Obj
from diloco_operator.kube.fields import Fields, fields, moment, objects, string, text, whole_number
from diloco_operator.report import PartState


@dataclass(frozen=True, slots=True)
class PartPoolView:
    """One pool of a part."""

    placed: int = 0
    waiting_since: float | None = None
    """Since when units of it wait for hardware. None if none does."""
    reason: str = ""
    message: str = ""
    tokens_per_second: float = 0.0
    """The speed of one unit, 0 if that is not measured yet."""


@dataclass(frozen=True, slots=True)
class PartJob:
    """The DiLoCoJob of a part."""

    uid: str
    home: str
    """uid of the job that has made it, "" if no job has."""
    deleting: bool
    version: str
    digest: str
    """Digest of the spec that its home wrote last. "" if none did."""
    spec: Mapping[str, Any]
    state: PartState
    retry: int
    """`status.retry`: the highest `spec.retry` that its operator has acted on."""
    pools: Mapping[str, PartPoolView]

    def failed(self, retry: int) -> bool:
        """Whether it has failed and does not start again. `retry`: `spec.retry` of its home."""
        return self.state.state == JobState.FAILED and self.retry >= retry


@dataclass(frozen=True, slots=True)
class PartView:
    """A part as its home sees it now."""

    job: PartJob | None = None
    """None if there is none, or none is known of."""
    problem: str = ""
    """Why it cannot be made or changed, and what to do. "" if nothing is known to be wrong."""
    silent_since: float | None = None
    """Since when the cluster's API server has not answered. None if it does."""
    left: bool = False
    """Something of it may be there, as its Secret, although no job is known of."""
    unknown: bool = False
    """The operator has no cluster of this name. So nothing that is left there will be seen to go."""
    namespace: str = ""
    """Where its DiLoCoJob belongs in that cluster. "" if jobs of this namespace may have none there."""

    def pool(self, name: str, on_record: Mapping[str, Any]) -> PartPoolView:
        """Return what the part says about one of its pools: nothing, until it has begun. `on_record`: the pool in status here. That counts
        while the cluster is silent and this operator has not read the part since it started."""
        if self.job is None and self.silent_since is not None:
            return _pool(on_record)
        return self.job.pools.get(name, PartPoolView()) if self.job is not None else PartPoolView()


def project_part_job(obj: Obj) -> PartJob:
    """Project the object. What another cluster says may be anything. Raises `MalformedField`."""
    meta, status = fields(obj, "metadata"), fields(obj, "status")
    return PartJob(
        uid=string(meta, "uid", "metadata"),
        home=string(fields(meta, "labels", "metadata"), names.LABEL_HOME, "metadata.labels"),
        deleting=bool(meta.get("deletionTimestamp")),
        version=string(meta, "resourceVersion", "metadata"),
        digest=string(fields(meta, "annotations", "metadata"), names.ANNOTATION_SPEC_DIGEST, "metadata.annotations"),
        spec=dict(fields(obj, "spec")),
        state=part_state(status),
        retry=whole_number(status, "retry", "status", least=0),
        pools={string(each, "name", "status.pools[]"): _pool(each) for each in objects(status, "pools", "status")},
    )


def part_state(status: Fields) -> PartState:
    """Read a part's state from its status. Raises `MalformedField`."""
    state, reason = text(status, "state", "status", limit=63), text(status, "reason", "status", limit=63)
    conditions = objects(status, "conditions", "status")
    said = next((text(each, "message", "status.conditions[]") for each in conditions if string(each, "reason", "") == reason), "")
    message = f"{reason}: {said}" if reason and said else reason or said
    goodput = fields(status, "goodput", "status")
    attempts = {string(unit, "name", "status.units[]"): unit.get("attempt") for unit in objects(status, "units", "status")}
    hours = fields(goodput, "acceleratorHours", "status.goodput")
    return PartState.of(state, message, goodput.get("productiveShare"), hours, attempts)


def _pool(entry: Mapping[str, Any]) -> PartPoolView:
    at = "status.pools[]"
    speed = entry.get("tokensPerSecond")
    return PartPoolView(
        placed=whole_number(entry, "placed", at, least=0),
        waiting_since=moment(entry, "waitingSince", at),
        reason=text(entry, "reason", at, limit=63),
        message=text(entry, "message", at),
        tokens_per_second=float(speed) if isinstance(speed, int | float) and 0 <= speed <= MOST_TOKENS_PER_SECOND else 0.0,
    )
