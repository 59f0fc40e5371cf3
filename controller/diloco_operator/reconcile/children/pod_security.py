"""Fills in the fields of the restricted Pod Security profile that a template does not set. The training container gets more if its
accelerator needs it. Pure.

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

    Args:
        own_volumes: the volumes are the job's own, so their group may be changed to one that can write. A user's volume is left alone: to
            change the group of a large data set takes hours
        users: name the user and the groups, which the cluster assigns otherwise
    """
    given = template.get("securityContext") or {}
    defaults = {**_POD, **({"fsGroup": NONROOT, "fsGroupChangePolicy": "OnRootMismatch"} if own_volumes else {})}
    security_context = {**(defaults if users else {key: value for key, value in defaults.items() if key not in _USERS}), **given}
    if given.get("runAsUser") == 0 and "runAsNonRoot" not in given:
        del security_context["runAsNonRoot"]
    return security_context


def with_access(container: Mapping[str, Any], template: Mapping[str, Any], access: Access, *, users: bool = True) -> Mapping[str, Any]:
    """Give the training container the user and the capabilities that its accelerator needs, unless the template chooses a user. `users`:
    see `pod_security`."""
    given, of_pod = container.get("securityContext") or {}, template.get("securityContext") or {}
    chosen = any(each.get("runAsUser") is not None or each.get("runAsNonRoot") for each in (given, of_pod)) or given.get("privileged")
    if not access.root or chosen or not users:
        return container
    capabilities = given.get("capabilities") or {}
    added = {"add": list(access.capabilities)} if access.capabilities and "add" not in capabilities else {}
    security_context = {"runAsUser": 0, "runAsGroup": 0, **given}
    if added:
        security_context["capabilities"] = {"drop": ["ALL"], **capabilities, **added}
    return {**container, "securityContext": security_context}


def restricted(container: Mapping[str, Any]) -> Obj:
    """Deny a container what the restricted profile forbids, unless the template asks for it."""
    given = container.get("securityContext") or {}
    drop = {"drop": ["ALL"], **(given.get("capabilities") or {})}
    security_context: Obj = {**given, "capabilities": drop}
    if not given.get("privileged"):  # the API server rejects the two together
        security_context.setdefault("allowPrivilegeEscalation", False)
    if given.get("runAsUser") == 0:
        security_context.setdefault("runAsNonRoot", False)
    return {**container, "securityContext": security_context}


def restricted_main(container: Mapping[str, Any]) -> Obj:
    """Restrict the main container and make its root file system read-only, with a writable /tmp that is also its home directory."""
    main = restricted(container)
    main["securityContext"].setdefault("readOnlyRootFilesystem", True)
    if not has_tmp(main):
        return main
    if all(each["name"] != "HOME" for each in main.get("env") or ()):
        main["env"] = [{"name": "HOME", "value": TMP}, *(main.get("env") or ())]
    mounts = main.get("volumeMounts") or []
    if all(each["mountPath"].rstrip("/") != TMP for each in mounts):
        main["volumeMounts"] = [*mounts, {"name": names.TMP_VOLUME, "mountPath": TMP}]
    return main


def has_tmp(container: Mapping[str, Any]) -> bool:
    """Whether the container needs a /tmp because its root file system is read-only."""
    return bool(container["securityContext"].get("readOnlyRootFilesystem"))


def tmp_volumes(container: Mapping[str, Any]) -> list[Obj]:
    """The pod's volume for the /tmp that `restricted_main` mounts; [] if it mounts none."""
    mounted = any(each["name"] == names.TMP_VOLUME for each in container.get("volumeMounts") or ())
    return [{"name": names.TMP_VOLUME, "emptyDir": {}}] if mounted else []
