"""The restricted Pod Security profile under a template: fields that the template does not set are filled in, one by one. The container
that trains gets more where its accelerator needs it. Pure.

See docs/decisions/0099-pod-security-and-templates.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diloco_operator.accelerators import Access
from diloco_operator.api import names
from diloco_operator.kube.client import Obj

NONROOT = 65532
"""User and group of our images ("nonroot")."""
TMP = "/tmp"  # noqa: S108 - a path in the container, where an emptyDir is mounted
_USERS = ("runAsUser", "runAsGroup", "fsGroup", "fsGroupChangePolicy")
_POD = {"runAsNonRoot": True, "runAsUser": NONROOT, "runAsGroup": NONROOT, "seccompProfile": {"type": "RuntimeDefault"}}


def pod_security(template: Mapping[str, Any], *, own_volumes: bool = False, users: bool = True) -> Obj:
    """Return a pod's securityContext. A template that asks for user 0 does not get our runAsNonRoot; the cluster's policy may reject the
    pod.

    `own_volumes`: its volumes are the job's own, so their group may be changed to one that can write. A user's volume is left alone:
    changing the group of a large data set takes hours. `users`: name the user and the groups; else the cluster assigns them.
    """
    given = template.get("securityContext") or {}
    defaults = {**_POD, **({"fsGroup": NONROOT, "fsGroupChangePolicy": "OnRootMismatch"} if own_volumes else {})}
    found = {**(defaults if users else {key: value for key, value in defaults.items() if key not in _USERS}), **given}
    if given.get("runAsUser") == 0 and "runAsNonRoot" not in given:
        del found["runAsNonRoot"]
    return found


def with_access(container: Mapping[str, Any], template: Mapping[str, Any], access: Access, *, users: bool = True) -> Mapping[str, Any]:
    """Return the container that trains, as the user and with the capabilities that its accelerator needs, if the template chooses no user.
    `users`: see `pod_security`."""
    given, of_pod = container.get("securityContext") or {}, template.get("securityContext") or {}
    chosen = any(each.get("runAsUser") is not None or each.get("runAsNonRoot") for each in (given, of_pod)) or given.get("privileged")
    if not access.root or chosen or not users:
        return container
    capabilities = given.get("capabilities") or {}
    added = {"add": list(access.capabilities)} if access.capabilities and "add" not in capabilities else {}
    found = {"runAsUser": 0, "runAsGroup": 0, **given}
    if added:
        found["capabilities"] = {"drop": ["ALL"], **capabilities, **added}
    return {**container, "securityContext": found}


def restricted(container: Mapping[str, Any]) -> Obj:
    """Restrict any container of the pod: nothing that the restricted profile forbids, unless the template asks for it."""
    given = container.get("securityContext") or {}
    drop = {"drop": ["ALL"], **(given.get("capabilities") or {})}
    found: Obj = {**given, "capabilities": drop}
    if not given.get("privileged"):  # the API server rejects the two together
        found.setdefault("allowPrivilegeEscalation", False)
    if given.get("runAsUser") == 0:
        found.setdefault("runAsNonRoot", False)
    return {**container, "securityContext": found}


def main_container(container: Mapping[str, Any]) -> Obj:
    """Return the container of the contract: restricted, its root file system read-only, with a /tmp and a home directory that it can write
    to."""
    found = restricted(container)
    found["securityContext"].setdefault("readOnlyRootFilesystem", True)
    if not has_tmp(found):
        return found
    if all(each["name"] != "HOME" for each in found.get("env") or ()):
        found["env"] = [{"name": "HOME", "value": TMP}, *(found.get("env") or ())]
    mounts = found.get("volumeMounts") or []
    if all(each["mountPath"].rstrip("/") != TMP for each in mounts):
        found["volumeMounts"] = [*mounts, {"name": names.TMP_VOLUME, "mountPath": TMP}]
    return found


def has_tmp(container: Mapping[str, Any]) -> bool:
    """Return whether the container needs a place to write because its root file system is read-only."""
    return bool(container["securityContext"].get("readOnlyRootFilesystem"))


def tmp_volumes(container: Mapping[str, Any]) -> list[Obj]:
    """Return the pod's volume for what `main_container` mounts; none if it mounts none."""
    mounted = any(each["name"] == names.TMP_VOLUME for each in container.get("volumeMounts") or ())
    return [{"name": names.TMP_VOLUME, "emptyDir": {}}] if mounted else []
