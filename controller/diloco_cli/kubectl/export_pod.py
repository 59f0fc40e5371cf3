"""The pod of `kubectl diloco export`: it mounts a syncer's claim read-only and waits until a program is executed in it.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from diloco import contract
from diloco_operator.api import names
from diloco_operator.kube.client import ApiError, Client, NotFound, Obj
from diloco_operator.kube.pods import has_ended
from diloco_operator.reconcile.children.pod_security import pod_security, restricted_main, tmp_volumes
from diloco_operator.timeouts import EXPORT

from diloco_cli.cluster import CommandError

MODULE = ("-m", "diloco.export")
_RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
"""Memory does not grow with the model. The limit is for namespaces whose quota demands one."""
_FROM_TEMPLATE = ("imagePullSecrets", "nodeSelector", "tolerations", "runtimeClassName", "schedulerName", "serviceAccountName", "hostUsers")
"""Fields of the syncer's template that decide whether a pod is admitted and starts."""
_BAD_IMAGE = ("InvalidImageName", "ImageInspectError", "ErrImageNeverPull")
_BAD_CONTAINER = ("CreateContainerConfigError", "CreateContainerError")
_GRACE = 1
_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What `manifest` needs for the pod."""

    name: str
    namespace: str
    claim: str
    image: str
    python: str = "python"
    node: str = ""
    """Where the pod must run, because a running pod has mounted the claim there. "" for anywhere."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """Spec of the syncer's pod template."""
    seconds: float = EXPORT.whole


def manifest(request: PodRequest) -> Obj:
    """The pod's manifest. Like all pods of a job it satisfies the restricted Pod Security profile. Pure."""
    syncer = syncer_container(request.template)
    container = restricted_main(
        {
            "name": names.EXPORT_CONTAINER,
            "image": request.image,
            "command": [request.python, *MODULE, "--hold"],
            "resources": _RESOURCES,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [{"name": names.STATE_VOLUME, "mountPath": contract.MOUNT_STATE, "readOnly": True}],
            **{key: syncer[key] for key in ("securityContext", "imagePullPolicy") if key in syncer},
        }
    )
    only = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [request.node]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [only]}}}
    # Only the mount is read-only, not the volume: some drivers refuse to attach a volume to a node in both ways.
    claim = {"name": names.STATE_VOLUME, "persistentVolumeClaim": {"claimName": request.claim}}
    return {
        "apiVersion": names.PODS.api_version,
        "kind": names.PODS.kind,
        "metadata": {
            "name": request.name,
            "namespace": request.namespace,
            "labels": {names.LABEL_COMPONENT: names.COMPONENT_EXPORT},
        },
        "spec": {
            **{key: request.template[key] for key in _FROM_TEMPLATE if key in request.template},
            **({"affinity": affinity} if request.node else {}),
            "restartPolicy": "Never",
            "activeDeadlineSeconds": math.ceil(request.seconds),
            "terminationGracePeriodSeconds": _GRACE,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod_security(request.template, own_volumes=True),
            "containers": [container],
            "volumes": [claim, *tmp_volumes(container)],
        },
    }


@contextlib.asynccontextmanager
async def running_pod(
    client: Client, request: PodRequest, say: Callable[[str], None], *, start: float = EXPORT.start
) -> AsyncIterator[str]:
    """Yield the pod's name once it runs, and delete the pod in the end. Raises ApiError, and `CommandError` that says why it does not
    run."""
    await _remove_ended(client, request.namespace, request.claim)
    created = await client.create(names.PODS, manifest(request), field_manager=names.KUBECTL_PLUGIN)
    name, uid = created["metadata"]["name"], created["metadata"]["uid"]
    try:
        await _until_running(client, request, name, say, min(start, request.seconds))
        yield name
    finally:
        try:
            with contextlib.suppress(NotFound):
                await client.delete(names.PODS, request.namespace, name, grace_seconds=_GRACE, uid=uid)
        except ApiError as error:
            say(f"pod {name} could not be deleted: {error.message}; it ends by itself after {request.seconds:.0f} s")


async def _remove_ended(client: Client, namespace: str, claim: str) -> None:
    """Delete ended pods of this claim that earlier commands could not delete."""
    selector = f"{names.LABEL_COMPONENT}={names.COMPONENT_EXPORT}"
    for pod in (await client.list(names.PODS, namespace, label_selector=selector)).items:
        if has_ended(pod) and mounts(pod, claim):
            with contextlib.suppress(NotFound):
                await client.delete(names.PODS, namespace, pod["metadata"]["name"], uid=pod["metadata"]["uid"])


def syncer_container(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The syncer's container in the spec of a pod or template. Empty if there is none."""
    containers = spec.get("containers") or ()
    return next((container for container in containers if container.get("name") == names.SYNCER_CONTAINER), _NOTHING)


def mounts(pod: Obj, claim: str) -> bool:
    volumes = pod["spec"].get("volumes") or ()
    return any((volume.get("persistentVolumeClaim") or {}).get("claimName") == claim for volume in volumes)


async def _until_running(client: Client, request: PodRequest, name: str, say: Callable[[str], None], start: float) -> None:
    loop = asyncio.get_running_loop()
    deadline, shown, backed_off = loop.time() + start, "", False
    while True:
        try:
            pod = await client.get(names.PODS, request.namespace, name)
        except NotFound as error:
            raise CommandError(f"pod {name} was deleted before it ran") from error
        status = pod.get("status") or {}
        container: Mapping[str, Any] = next(iter(status.get("containerStatuses") or ()), _NOTHING)
        if status.get("phase") == "Running" and "running" in (container.get("state") or {}):
            return
        why = _waits_for(status, container)
        if has_ended(pod):
            raise CommandError(_ended_message(request, name, status, container))
        reason = ((container.get("state") or {}).get("waiting") or {}).get("reason")
        # The kubelet tries a failed pull again, so the first one is not hopeless. It shows ErrImagePull once a pull has failed, and
        # ImagePullBackOff while it waits before the next: ErrImagePull after that is of a second pull.
        backed_off = backed_off or reason == "ImagePullBackOff"
        if reason in _BAD_IMAGE or (reason == "ErrImagePull" and backed_off):
            raise CommandError(f"pod {name} cannot start: {why}. {_image_hint(request)}")
        if reason in _BAD_CONTAINER:
            raise CommandError(f"pod {name} cannot start: {why}.")
        if loop.time() > deadline:
            events = await _last_events(client, request.namespace, name)
            raise CommandError(f"pod {name} does not run after {start:.0f} s: {why or 'no reason is known'}{events}")
        if why and why != shown:
            say(f"waiting for pod {name}: {why}")
            shown = why
        await asyncio.sleep(EXPORT.poll)


def _waits_for(status: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    """Why the pod does not run yet, by its status. "" if that does not tell."""
    waiting = (container.get("state") or {}).get("waiting") or {}
    if waiting.get("message"):
        return f"{waiting.get('reason')}: {waiting['message']}"
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False" and condition.get("message"):
            return f"no node takes it: {condition['message']}"
    return ""


def _ended_message(request: PodRequest, name: str, status: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    ended = (container.get("state") or {}).get("terminated") or {}
    message = str(ended.get("message") or status.get("message") or status.get("reason") or "").strip()
    if no_export(message):
        return no_syncer_image(request.image)
    return f"pod {name} ended before the export: exit {ended.get('exitCode', '?')}: {message or 'no message'}. {_image_hint(request)}"


def no_export(message: str) -> bool:
    """Whether a Python says that it has no such module."""
    return "No module named" in message and "diloco" in message


def no_syncer_image(image: str) -> str:
    return f"image {image} has no `python -m diloco.export`: it is no image of a syncer; give one with --image"


def _image_hint(request: PodRequest) -> str:
    return f"The image is {request.image}; --image chooses another"


async def _last_events(client: Client, namespace: str, name: str) -> str:
    """The last warning about the pod, such as a volume that cannot be attached. "" if none can be read."""
    with contextlib.suppress(ApiError):
        events = await client.list(names.EVENTS, namespace, field_selector=f"involvedObject.name={name}")
        warnings = [str(event.get("message") or "") for event in events.items if event.get("type") == "Warning"]
        return f"; last event: {warnings[-1]}" if warnings else ""
    return ""
