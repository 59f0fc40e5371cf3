"""Whether the DiLoCoJob resource that a cluster has is at least what this operator needs.

An API server drops fields that its CustomResourceDefinition does not name, silently: an operator over an older one would write restarts and
attempts into status and never see them again. So it looks first, says what is missing, and waits until somebody has mended it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from diloco_operator.api import names
from diloco_operator.api.crd import CRD_NAME, build_crd
from diloco_operator.kube.client import ApiError, Client, Forbidden, NotFound, Obj
from diloco_operator.timeouts import RECONCILE

log = logging.getLogger(__name__)

_SHOWN = 5
_HINT = (
    "install the CustomResourceDefinition that belongs to this operator: crds.enabled=true in the Helm chart, or `kubectl apply -f crds/`"
)


class CrdCheck:
    """Looks at the installed definition until cancelled. `problem` is what is wrong with it, for people; "": nothing."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.problem = "the CustomResourceDefinition has not been looked at yet"
        self._good = asyncio.Event()

    async def wait_good(self) -> None:
        """Returns when the definition has been seen to be right, once."""
        await self._good.wait()

    async def run(self) -> None:
        """Look, and look again."""
        while True:
            await self._look()
            await asyncio.sleep(RECONCILE.crd_retry if self.problem else RECONCILE.crd_recheck)

    async def _look(self) -> None:
        try:
            problem = problem_of(await self._client.get(names.CUSTOM_RESOURCES, "", CRD_NAME))
        except NotFound:
            problem = f"the cluster has no CustomResourceDefinition {CRD_NAME}; {_HINT}"
        except Forbidden as error:
            problem = (
                f"the operator may not read the CustomResourceDefinition {CRD_NAME}; give its ServiceAccount the right: {error.message}"
            )
        except (ApiError, OSError) as error:
            if self._good.is_set():
                return  # it was right, and whether it still is cannot be known now
            problem = f"the CustomResourceDefinition {CRD_NAME} cannot be read: {error}"
        if problem and problem != self.problem:
            log.error("not ready: %s", problem)
        self.problem = problem
        if not problem:
            self._good.set()


def problem_of(installed: Obj) -> str:
    """What is wrong with an installed definition; "": nothing. Pure."""
    lacking = list(what_lacks(installed))
    if not lacking:
        return ""
    more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
    shown = ", ".join(lacking[:_SHOWN])
    return f"the CustomResourceDefinition {CRD_NAME} in the cluster is of another version: it lacks {shown}{more}; {_HINT}"


def what_lacks(installed: Obj) -> Iterator[str]:
    """What this operator needs and the installed definition has not: fields by their path, values of an enumeration, subresources. Pure."""
    [needed] = [version for version in build_crd()["spec"]["versions"] if version["name"] == names.VERSION]
    found = next(
        (v for v in (installed.get("spec") or {}).get("versions") or () if v.get("name") == names.VERSION and v.get("served")), None
    )
    if found is None:
        yield f"version {names.VERSION}"
        return
    conditions = {each.get("type"): each.get("status") for each in (installed.get("status") or {}).get("conditions") or ()}
    if conditions.get("Established") != "True":
        yield "the condition Established (the API server does not serve it yet)"
    for subresource in needed.get("subresources") or {}:
        if subresource not in (found.get("subresources") or {}):
            yield f"the subresource {subresource}"
    yield from _missing(needed["schema"]["openAPIV3Schema"], (found.get("schema") or {}).get("openAPIV3Schema") or {}, "")


def _missing(needed: Mapping[str, Any], found: Mapping[str, Any], path: str) -> Iterator[str]:
    if found.get("x-kubernetes-preserve-unknown-fields"):
        return
    if "type" in needed and found.get("type") != needed["type"]:
        yield f"{path or '.'} of type {needed['type']}"
        return
    if "enum" in found:
        values = [value for value in needed.get("enum") or () if value not in found["enum"]]
        yield from (f"the value {value} of {path}" for value in values)
    for name, schema in (needed.get("properties") or {}).items():
        where = f"{path}.{name}" if path else name
        theirs = (found.get("properties") or {}).get(name)
        if theirs is None:
            yield where
        else:
            yield from _missing(schema, theirs, where)
    for keyword, suffix in (("items", "[]"), ("additionalProperties", ".*")):
        schema = needed.get(keyword)
        if isinstance(schema, dict):
            theirs = found.get(keyword)
            yield from _missing(schema, theirs, path + suffix) if isinstance(theirs, dict) else iter([path + suffix])
