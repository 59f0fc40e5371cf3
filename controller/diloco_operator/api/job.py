"""DiLoCoJob v1alpha1: an object of the API in its typed form, and back.

`api.spec` and `api.status` have its two parts.

See docs/decisions/0010-crd-and-limits.md.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationError

from diloco_operator.api.base import ApiModel, field_path
from diloco_operator.api.names import API_VERSION, KIND
from diloco_operator.api.spec import Pool, Spec
from diloco_operator.api.status import Condition, Status
from diloco_operator.kube.client import Cause, Obj
from diloco_operator.kube.fields import metadata_of
from diloco_operator.kube.timestamps import Timestamp


class ObjectMeta(ApiModel):
    """What the operator reads of metadata."""

    name: str
    namespace: str = "default"
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Timestamp | None = None
    deletion_timestamp: Timestamp | None = None
    finalizers: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class DiLoCoJob(ApiModel):
    """Trains one model by Decoupled DiLoCo: learner units on mixed hardware around one syncer."""

    api_version: Literal["diloco.dev/v1alpha1"] = API_VERSION  # type: ignore[assignment]
    kind: Literal["DiLoCoJob"] = KIND  # type: ignore[assignment]
    metadata: ObjectMeta
    spec: Spec = Field(description="Desired state: how many learners, on which hardware, and what they train.")
    status: Status = Field(
        default_factory=Status, description="Observed state: conditions, progress and learner units. Only the operator writes it."
    )

    def pool(self, name: str) -> Pool | None:
        """None if the spec has no pool of this name."""
        return next((pool for pool in self.spec.pools if pool.name == name), None)

    def condition(self, type: str) -> Condition | None:
        """None if status has no condition of this type."""
        return self.status.condition(type)


class InvalidJob(ValueError):
    """The object is no DiLoCoJob of this version. `causes` has every wrong field."""

    def __init__(self, name: str, causes: tuple[Cause, ...]) -> None:
        self.causes = causes
        super().__init__(f"DiLoCoJob {name} cannot be read: " + "; ".join(f"{cause.field}: {cause.message}" for cause in causes))


def load(obj: Obj) -> DiLoCoJob:
    """Return the typed form of an API object; absent fields get their defaults. Raises `InvalidJob`.

    Only types are checked. An API server has checked the CRD's rules before (`diloco_local.memory.schema` does, too).
    """
    try:
        return DiLoCoJob.model_validate(obj)
    except ValidationError as error:
        name = str(metadata_of(obj).get("name", ""))
        raise InvalidJob(name, tuple(Cause(field_path(problem["loc"]), problem["msg"]) for problem in error.errors())) from error


def dump(job: DiLoCoJob) -> Obj:
    """Return the API object of a job, without the fields that are None. `load(dump(job)) == job`."""
    return job.model_dump(mode="json", by_alias=True, exclude_none=True)
