"""Checks that the cluster's CustomResourceDefinition has everything that this operator needs.

An API server silently drops fields that its CustomResourceDefinition does not have. With an older definition the operator would write
restarts and attempts into status and never see them again. So it checks first, reports what is missing, and waits until that is fixed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from diloco.wording import and_more

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
    """Checks the installed definition until cancelled. `problem` says what is wrong with it, human-readable, or is ""."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.problem = "the CustomResourceDefinition is not checked yet"
        self._good = asyncio.Event()
        self._due = asyncio.Event()

    async def wait_good(self) -> None:
        await self._good.wait()

    def check_soon(self) -> None:
        """Check soon, because something else shows that the definition may have changed."""
        self._due.set()

    async def run(self) -> None:
        while True:
            self._due.clear()
            await self._check()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), RECONCILE.crd_retry if self.problem else RECONCILE.crd_recheck)

    async def _check(self) -> None:
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
                return  # the last check found no problem, and there is no newer knowledge
            problem = f"the CustomResourceDefinition {CRD_NAME} cannot be read: {error}"
        if problem and problem != self.problem:
            log.error("not ready: %s", problem)
        self.problem = problem
        if not problem:
            self._good.set()


def problem_of(installed: Obj) -> str:
    """Return what is wrong with an installed definition, "" if nothing is. Pure."""
    missing = list(missing_parts(installed))
    if not missing:
        return ""
    shown = and_more(missing[:_SHOWN], len(missing))
    return f"the CustomResourceDefinition {CRD_NAME} in the cluster is of another version: it lacks {shown}; {_HINT}"


def missing_parts(installed: Obj) -> Iterator[str]:
    """Yield what this operator needs and the installed definition lacks: fields by their path, values of an enumeration, subresources.
    Pure."""
    [needed] = [version for version in build_crd()["spec"]["versions"] if version["name"] == names.VERSION]
    served = next(
        (v for v in (installed.get("spec") or {}).get("versions") or () if v.get("name") == names.VERSION and v.get("served")), None
    )
    if served is None:
        yield f"version {names.VERSION}"
        return
    conditions = {each.get("type"): each.get("status") for each in (installed.get("status") or {}).get("conditions") or ()}
    if conditions.get("Established") != "True":
        yield "the condition Established (the API server does not serve it yet)"
    for subresource in needed.get("subresources") or {}:
        if subresource not in (served.get("subresources") or {}):
            yield f"the subresource {subresource}"
    yield from _missing(needed["schema"]["openAPIV3Schema"], (served.get("schema") or {}).get("openAPIV3Schema") or {}, "")


def _missing(needed: Mapping[str, Any], installed: Mapping[str, Any], path: str) -> Iterator[str]:
    if installed.get("x-kubernetes-preserve-unknown-fields"):
        return
    if "type" in needed and installed.get("type") != needed["type"]:
        yield f"{path or '.'} of type {needed['type']}"
        return
    if "enum" in installed:
        values = [value for value in needed.get("enum") or () if value not in installed["enum"]]
        yield from (f"the value {value} of {path}" for value in values)
    for name, schema in (needed.get("properties") or {}).items():
        where = f"{path}.{name}" if path else name
        child = (installed.get("properties") or {}).get(name)
        if child is None:
            yield where
        else:
            yield from _missing(schema, child, where)
    for keyword, suffix in (("items", "[]"), ("additionalProperties", ".*")):
        schema = needed.get(keyword)
        if isinstance(schema, dict):
            child = installed.get(keyword)
            yield from _missing(schema, child, path + suffix) if isinstance(child, dict) else iter([path + suffix])
