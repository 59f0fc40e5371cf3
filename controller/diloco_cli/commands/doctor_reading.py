"""Reads what the doctor looks at: objects, versions, rights, and whether a learner reaches the syncer. What the user may not read becomes
`Unreadable`.

See docs/decisions/0176-explain-and-doctor.md.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from diloco import contract
from diloco_operator.accelerators import BUILT_IN, extend
from diloco_operator.api import names
from diloco_operator.api.catalogue_file import BadCatalogue, read_catalogue
from diloco_operator.api.crd import CRD_NAME
from diloco_operator.kube.client import ApiError, Forbidden, NotFound, Obj, Resource
from diloco_operator.kube.lease import LEASES
from diloco_operator.kube.listing import list_all, list_optional
from diloco_operator.kube.rest import RestClient
from diloco_operator.kube.rest.pod_exec import Channel
from diloco_operator.kube.rest.server_clock import ServerClock
from diloco_operator.program.config import BadConfiguration, read_configuration
from diloco_operator.program.yaml_reader import BadYaml, load
from diloco_operator.reach import REACH_COMMAND, REACH_SECONDS
from diloco_operator.reconcile import OperatorConfig

from diloco_cli.checks import Facts, Reach, Review, Right, Unreadable
from diloco_cli.checks.operators import PART_OF, lease_of, watches
from diloco_cli.checks.rights import caller_rights, operator_rights
from diloco_cli.jobs import find_job

_KUBELET_LEASES = "kube-node-lease"
_NO_SUCH_PROGRAM = (126, 127)
_AGAIN = "run doctor again; if it stays so, see whether the API server and the node are well (kubectl get nodes)"


class Wanted(NamedTuple):
    """What the user asked the doctor to check."""

    namespace: str
    """"" for the cluster alone."""
    job: str


async def read_facts(client: RestClient, wanted: Wanted, clock: ServerClock) -> Facts:
    """Read all that the checks need. Raises `CommandError` if the job does not exist, and `ApiError` if the API server does not answer."""
    version = await client.server_version()
    job = await find_job(client, wanted.namespace, wanted.job) if wanted.job else None
    groups = await client.groups()
    objects = await _objects(client, wanted)
    operator = _operator(objects[names.DEPLOYMENTS], wanted.namespace)
    rights, account = (operator_rights(wanted.namespace), _account(operator)) if operator else ((), "")
    caller_reviews, operator_reviews, config, elections, reached = await asyncio.gather(
        _reviews(client, caller_rights(wanted.namespace) if wanted.namespace else (), ""),
        _reviews(client, rights, account),
        _config(client, operator),
        _elections(client, objects[names.DEPLOYMENTS]),
        reach(client, wanted, objects[names.PODS]),
    )
    return Facts(
        namespace=wanted.namespace,
        now=clock.now(),
        ahead=clock.now() - clock.local(),
        version=importlib.metadata.version("diloco-operator"),
        kubernetes=version,
        groups=groups,
        objects=objects,
        config=config,
        elections=elections,
        own_rights=caller_reviews,
        operator_rights=operator_reviews,
        job=job,
        reach=reached,
    )


# --- objects ----------------------------------------------------------------------------------------------------------
async def _objects(client: RestClient, wanted: Wanted) -> dict[Resource, Sequence[Obj] | Unreadable]:
    reads = [
        _listed(client, names.NODES),
        _optional(client, names.RESOURCE_SLICES, names.GPU_SLICES),
        _listed(client, names.STORAGE_CLASSES),
        _listed(client, LEASES, _KUBELET_LEASES),
        _listed(client, names.DEPLOYMENTS, labels=PART_OF),
        _fetched(client, names.CUSTOM_RESOURCES, "", CRD_NAME),
        _fetched(client, names.SERVICES, "default", "kubernetes"),
    ]
    if wanted.namespace:
        reads += [
            _fetched(client, names.NAMESPACES, "", wanted.namespace),
            _listed(client, names.QUOTAS, wanted.namespace),
            _listed(client, names.LIMIT_RANGES, wanted.namespace),
        ]
    if wanted.job:
        labels = f"{names.LABEL_JOB}={wanted.job}"
        reads += [
            _listed(client, names.PODS, wanted.namespace, labels=labels),
            _listed(client, names.VOLUME_CLAIMS, wanted.namespace, labels=labels),
        ]
    return {names.PODS: (), **dict(await asyncio.gather(*reads))}


async def _listed(
    client: RestClient, resource: Resource, namespace: str = "", *, labels: str = ""
) -> tuple[Resource, Sequence[Obj] | Unreadable]:
    try:
        return resource, await list_all(client, resource, namespace, labels=labels)
    except Forbidden as error:
        return resource, _forbidden(resource, namespace, error)


async def _optional(client: RestClient, resource: Resource, fields: str) -> tuple[Resource, Sequence[Obj] | Unreadable]:
    try:
        return resource, await list_optional(client, resource, fields=fields)
    except Forbidden as error:
        return resource, _forbidden(resource, "", error)


async def _fetched(client: RestClient, resource: Resource, namespace: str, name: str) -> tuple[Resource, Sequence[Obj] | Unreadable]:
    try:
        return resource, [await client.get(resource, namespace, name)]
    except NotFound:
        return resource, ()
    except Forbidden as error:
        return resource, _forbidden(resource, namespace, error)


def _forbidden(resource: Resource, namespace: str, error: ApiError) -> Unreadable:
    return Unreadable(f"{resource.plural} of {f'namespace {namespace}' if namespace else 'the cluster'}", error.message)


# --- rights -----------------------------------------------------------------------------------------------------------
async def _reviews(client: RestClient, rights: Sequence[Right], user: str) -> Sequence[Review] | Unreadable:
    """Ask the API server which rights `user` has. "" is the user of the command."""
    kind = names.SUBJECT_ACCESS_REVIEWS if user else names.SELF_SUBJECT_ACCESS_REVIEWS
    of = {"user": user} if user else {}

    async def review(right: Right) -> Review:
        answer = await client.create(kind, {"metadata": {}, "spec": {**of, "resourceAttributes": _attributes(right)}})
        return Review(right, bool((answer.get("status") or {}).get("allowed")))

    try:
        return await asyncio.gather(*map(review, rights))
    except Forbidden as error:
        return _forbidden(kind, "", error)


def _attributes(right: Right) -> Obj:
    given = {
        "verb": right.verb,
        "group": right.resource.group,
        "resource": right.resource.plural,
        "subresource": right.subresource,
        "namespace": right.namespace,
        "name": right.name,
    }
    return {key: value for key, value in given.items() if value}


# --- the operator -----------------------------------------------------------------------------------------------------
def _operator(deployments: Sequence[Obj] | Unreadable, namespace: str) -> Obj | None:
    """The operator that works on the namespace, else any. None if there is none or they cannot be read."""
    if isinstance(deployments, Unreadable):
        return None
    working = [deployment for deployment in deployments if not namespace or watches(deployment, namespace)]
    return next(iter([*working, *deployments]), None)


def _account(operator: Obj) -> str:
    spec = operator["spec"]["template"]["spec"]
    return f"system:serviceaccount:{operator['metadata']['namespace']}:{spec.get('serviceAccountName') or 'default'}"


async def _elections(client: RestClient, deployments: Sequence[Obj] | Unreadable) -> Sequence[Obj] | Unreadable:
    """Read the Leases that the operators' arguments name, as far as they exist."""
    keys = () if isinstance(deployments, Unreadable) else {key for deployment in deployments if (key := lease_of(deployment)) is not None}
    leases: list[Obj] = []
    for namespace, name in sorted(keys):
        try:
            leases.append(await client.get(LEASES, namespace, name))
        except NotFound:
            continue
        except Forbidden as error:
            return _forbidden(LEASES, namespace, error)
    return leases


async def _config(client: RestClient, operator: Obj | None) -> OperatorConfig | Unreadable:
    """Read the operator's configuration, or take the defaults if there is no operator. From now on this process also knows the accelerators
    of its catalogue file."""
    if operator is None:
        return OperatorConfig()
    volumes: Sequence[Mapping[str, Any]] = operator["spec"]["template"]["spec"].get("volumes") or ()
    name = next(
        (str(volume["configMap"].get("name")) for volume in volumes if volume.get("name") == "config" and volume.get("configMap")), ""
    )
    if not name:
        return OperatorConfig()
    namespace = operator["metadata"]["namespace"]
    what = f"configmap {namespace}/{name}"
    try:
        data = (await client.get(names.CONFIG_MAPS, namespace, name)).get("data") or {}
        if "catalogue.yaml" in data:
            extend(*read_catalogue(load(data["catalogue.yaml"]), BUILT_IN))
        return read_configuration(load(data.get("config.yaml") or "") or {}, what)[0]
    except Forbidden as error:
        return Unreadable(what, error.message)
    except ApiError as error:
        return Unreadable(what, error.message, _AGAIN)
    except (BadYaml, BadCatalogue, BadConfiguration) as error:
        return Unreadable(what, str(error), "correct it: the operator does not start with it")


# --- the syncer -------------------------------------------------------------------------------------------------------
async def reach(client: RestClient, wanted: Wanted, pods: Sequence[Obj] | Unreadable) -> Reach | Unreadable | None:
    """Try whether the first running pod of a learner reaches the syncer. None if none runs, or no job is looked at."""
    if isinstance(pods, Unreadable):
        return pods
    running = [pod for pod in pods if _is_running_learner(pod)]
    if not running:
        return None
    pod = min(running, key=lambda candidate: str(candidate["metadata"]["name"]))
    name = pod["metadata"]["name"]
    stderr: list[bytes] = []
    silence = 2 * REACH_SECONDS
    try:
        async with client.pod_exec(wanted.namespace, name, REACH_COMMAND, container=names.LEARNER_CONTAINER, silence=silence) as program:
            async for channel, piece in program.output():
                if channel is Channel.STDERR:
                    stderr.append(piece)
            ended = program.ended
    except Forbidden as error:
        return Unreadable(f"pod {name}", f"no program could be run in it: {error.message}")
    except ApiError as error:
        return Unreadable(f"pod {name}", f"no program could be run in it: {error.message}", _AGAIN)
    if ended is None:
        return Unreadable(f"pod {name}", "no Python could be run in it: the connection broke", _AGAIN)
    if ended.code is None or ended.code in _NO_SUCH_PROGRAM:
        return Unreadable(f"pod {name}", f"no Python could be run in it: {ended.message}", "put python3 on the PATH of the image")
    if ended.code == 0:
        return Reach(name, _address(pod), "")
    lines = b"".join(stderr).decode(errors="replace").strip().splitlines()
    return Reach(name, _address(pod), lines[-1] if lines else f"exit {ended.code}")


def _is_running_learner(pod: Obj) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return labels.get(names.LABEL_COMPONENT) == names.COMPONENT_LEARNER and (pod.get("status") or {}).get("phase") == "Running"


def _address(pod: Obj) -> str:
    variables = (variable for container in pod["spec"]["containers"] for variable in container.get("env") or ())
    return next((str(variable.get("value")) for variable in variables if variable["name"] == contract.ENV_SYNCER_ADDRESS), "")
