"""CustomResourceDefinitions: a `Kind` for each version that one serves.

The definitions are the project's own, and tests install them on a real API server. So this module does not look for errors in them.
"""

from __future__ import annotations

import functools
import json

from diloco_operator.kube.client import Obj, Resource

from diloco_local.memory.builtin import CUSTOM_RESOURCES
from diloco_local.memory.kinds import Kind
from diloco_local.memory.schema import Structural


def established(obj: Obj, time: str) -> Obj:
    """The definition with the status that makes it established."""
    conditions = [{"type": name, "status": "True", "lastTransitionTime": time} for name in ("NamesAccepted", "Established")]
    return {**obj, "status": {"conditions": conditions}}


@functools.lru_cache(maxsize=16)
def _structural(schema: str) -> Structural:
    return Structural(json.loads(schema))


def kinds_of(obj: Obj) -> list[Kind]:
    """One kind for each served version of a definition."""
    spec = obj["spec"]
    kinds = []
    for version in spec["versions"]:
        # Even the storage version: only a served version answers requests.
        if not version.get("served"):
            continue
        selectable = [each["jsonPath"].removeprefix(".") for each in version.get("selectableFields") or ()]
        names, namespaced = spec["names"], spec["scope"] == "Namespaced"
        kinds.append(
            Kind(
                Resource(spec["group"], version["name"], names["kind"], names["plural"], namespaced=namespaced),
                _structural(json.dumps(version["schema"]["openAPIV3Schema"])),
                status="status" in (version.get("subresources") or {}),
                generation=True,
                unconditional_update=False,
                selectable={path: tuple(path.split(".")) for path in selectable},
            )
        )
    return kinds


DEFINITIONS = Kind(CUSTOM_RESOURCES, status=True, generation=True, unconditional_update=False)
