"""What the server knows of a kind: its properties, and the functions that fill in defaults and validate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from diloco_operator.kube.client import Cause, Obj, Resource

from diloco_local.memory.meta import SUBDOMAIN
from diloco_local.memory.schema import Structural


def _nothing(obj: Obj) -> None:
    """Leave the object as it is."""


def _always_valid(obj: Obj) -> list[Cause]:
    return []


@dataclass(frozen=True, slots=True)
class Kind:
    resource: Resource
    structural: Structural | None = None
    """The schema of a custom resource, which fills in defaults, prunes and validates. None for a built-in kind."""
    status: bool = False
    """Whether status is a subresource."""
    keeps_status_on_create: bool = False
    generation: bool = False
    graceful: bool = False
    """Deletion waits for a kubelet. True of pods."""
    unconditional_update: bool = True
    """If False, an update must carry a resourceVersion."""
    name_rule: str = SUBDOMAIN
    selectable: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Field selector -> path, besides metadata.name and metadata.namespace."""
    default: Callable[[Obj], None] = _nothing
    """Fills defaults into a new object, in place."""
    initialize: Callable[[Obj], None] = _nothing
    """Sets the status of a new object, in place."""
    validate: Callable[[Obj], list[Cause]] = _always_valid
    """Errors of a new object."""

    @property
    def key(self) -> tuple[str, str]:
        return self.resource.group, self.resource.plural

    @property
    def title(self) -> str:
        """The resource's name in messages: `pods`, `dilocojobs.diloco.dev`."""
        return f"{self.resource.plural}.{self.resource.group}" if self.resource.group else self.resource.plural


def at_path(obj: Obj, path: tuple[str, ...]) -> object:
    """The value at a path. None if there is none."""
    value: object = obj
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return value
