"""What the doctor reads and what it finds. Plain data.

See docs/decisions/0176-explain-and-doctor.md.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from diloco.wording import and_more
from diloco_operator.api.job import InvalidJob, load
from diloco_operator.api.names import RESOURCE_SLICES
from diloco_operator.api.spec import Spec
from diloco_operator.kube.client import Obj, Resource
from diloco_operator.reconcile.config import OperatorConfig


class Level(enum.StrEnum):
    OK = "ok"
    WARNING = "warning"
    """Some jobs will not do what they are asked for, or the doctor could not check it."""
    ERROR = "error"
    """A job does not start or does not train until a person acts."""


class Check(enum.StrEnum):
    """What a check looks at. Programs use these names, so they do not change."""

    KUBERNETES = "kubernetes"
    CRD = "crd"
    OPERATOR = "operator"
    LEASE = "lease"
    CLOCKS = "clocks"
    ADDRESS_FAMILY = "address-family"
    NODES = "nodes"
    DRIVERS = "drivers"
    DEVICES = "devices"
    GRANTORS = "grantors"
    STORAGE_CLASS = "storage-class"
    USERS = "users"
    OPERATOR_RIGHTS = "operator-rights"
    YOUR_RIGHTS = "your-rights"
    QUOTA = "quota"
    POD_SECURITY = "pod-security"
    SERVICE_MESH = "service-mesh"
    JOB = "job"
    POOLS = "pools"
    VOLUME = "volume"
    SYNCER = "syncer"


class Finding(NamedTuple):
    """One line of the doctor's output."""

    check: Check
    level: Level
    where: str
    """The object: `node gpu-0`, `namespace team`, `cluster`."""
    message: str
    """What is wrong, or that all is well."""
    remedy: str = ""
    """What to do, or "" if all is well."""


class Right(NamedTuple):
    """Something that the operator or a user wants to do."""

    verb: str
    resource: Resource
    namespace: str = ""
    """"" for all namespaces, and for kinds without one."""
    subresource: str = ""
    name: str = ""
    """"" for every object."""

    def __str__(self) -> str:
        what = self.resource.plural + (f"/{self.subresource}" if self.subresource else "") + (f" {self.name}" if self.name else "")
        return f"{self.verb} {what}"


class Review(NamedTuple):
    """Whether the API server's authorizer grants a right."""

    right: Right
    allowed: bool


class Reach(NamedTuple):
    """A connection that was tried from a learner's pod to the syncer."""

    pod: str
    address: str
    """`host:port`."""
    error: str
    """Why the connection failed, or "" if it did not."""


ASK = "ask an administrator for the right to read this, or to run the command"


class Unreadable(NamedTuple):
    """Something that could not be read."""

    what: str
    why: str
    remedy: str = ASK
    """What to do. The default is for a missing right."""


class NotRead(Exception):
    """A check needs what could not be read."""

    def __init__(self, unreadable: Unreadable) -> None:
        self.unreadable = unreadable
        super().__init__(f"{unreadable.what}: {unreadable.why}")


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was read, at one time."""

    namespace: str
    """The namespace of the command. "" if only the cluster is checked."""
    now: float
    """Time by the API server's clock, in seconds since the epoch."""
    ahead: float
    """How far the API server's clock is ahead of this machine's, in seconds. 0 if they may be equal."""
    version: str
    """Version of this program."""
    kubernetes: Mapping[str, object]
    """The API server's version: `major`, `minor`, `gitVersion`."""
    groups: frozenset[str]
    """API groups that the API server serves."""
    objects: Mapping[Resource, Sequence[Obj] | Unreadable]
    """Objects by kind. Of kinds with a namespace it has only the objects that checks need."""
    config: OperatorConfig | Unreadable
    """Configuration of the operator that works on the namespace, or of the only operator."""
    elections: Sequence[Obj] | Unreadable = ()
    """Leases with which the operators elect their leaders."""
    own_rights: Sequence[Review] | Unreadable = ()
    operator_rights: Sequence[Review] | Unreadable = ()
    job: Obj | None = None
    reach: Reach | Unreadable | None = None
    """None if no learner's pod runs."""

    @property
    def spec(self) -> Spec | None:
        """The spec of the job, with the pools of this cluster alone. None if there is no job or its spec is not valid."""
        try:
            spec = load(self.job).spec if self.job is not None else None
        except InvalidJob:
            return None
        return spec and spec.model_copy(update={"pools": tuple(pool for pool in spec.pools if not pool.cluster)})

    @property
    def is_part(self) -> bool:
        """Whether the job's syncer is in another cluster."""
        return self.spec is not None and self.spec.syncer.at is not None

    @property
    def job_name(self) -> str:
        """How findings name the job: `job lm`. "" if there is none."""
        return f"job {self.job['metadata']['name']}" if self.job is not None else ""

    def of(self, resource: Resource) -> Sequence[Obj]:
        """The objects of this kind. Raises `NotRead`."""
        return read(self.objects.get(resource, ()))

    @property
    def gpu_slices(self) -> Sequence[Obj]:
        """ResourceSlices of GPUs. Empty if they cannot be read; the check of nodes tells that."""
        slices = self.objects.get(RESOURCE_SLICES, ())
        return () if isinstance(slices, Unreadable) else slices


def read[T](value: T | Unreadable) -> T:
    """Return `value`. Raises `NotRead` if it could not be read."""
    if isinstance(value, Unreadable):
        raise NotRead(value)
    return value


def named(names: Sequence[str]) -> str:
    """`gpu-0`, `gpu-0 and 2 more`."""
    return and_more(names[:1], len(names))


def ok(check: Check, where: str, message: str) -> Finding:
    return Finding(check, Level.OK, where, message)


def warning(check: Check, where: str, message: str, remedy: str) -> Finding:
    return Finding(check, Level.WARNING, where, message, remedy)


def error(check: Check, where: str, message: str, remedy: str) -> Finding:
    return Finding(check, Level.ERROR, where, message, remedy)
