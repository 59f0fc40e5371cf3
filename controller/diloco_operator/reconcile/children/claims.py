"""The claims with which learner pods get GPUs on hosts where only DRA offers them. A claim replaces the request for an extended resource.
Pure.

See docs/decisions/0269-dynamic-resource-allocation.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from diloco_operator.accelerators import CATALOGUE, NVIDIA_GPU
from diloco_operator.api import names
from diloco_operator.api.spec import Pool
from diloco_operator.fleet.device_pools import product_names
from diloco_operator.fleet.devices import claimed_devices
from diloco_operator.kube.client import Obj
from diloco_operator.plan import Create
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.metadata import owned
from diloco_operator.reconcile.observe.job import Job

_AMOUNTS = ("requests", "limits")


def template_name(job: Job, pool: Pool) -> str:
    return names.claim_template_name(job.name, job.uid, pool.name, pool.shape.accelerators_per_host)


def claiming(resources: Mapping[str, Any]) -> Obj:
    """Replace the request for accelerators in a container's resources by the claim."""
    amounts = {kind: {name: amount for name, amount in (resources.get(kind) or {}).items() if name != NVIDIA_GPU} for kind in _AMOUNTS}
    claims = [*(resources.get("claims") or ()), {"name": names.ACCELERATOR_CLAIM}]
    return {**resources, **amounts, "claims": claims}


def with_claim(job: Job, pool: Pool, spec: Mapping[str, Any]) -> Obj:
    claim = {"name": names.ACCELERATOR_CLAIM, "resourceClaimTemplateName": template_name(job, pool)}
    return {**spec, "resourceClaims": [*(spec.get("resourceClaims") or ()), claim]}


def claim_templates(context: ReconcileContext, learners: Iterable[Create]) -> list[Create]:
    """The ResourceClaimTemplates of these pods, one for each pool. The operator does not watch them: if one exists already, its create
    counts as success."""
    job = context.observed.job
    claiming = {
        create.obj["metadata"]["labels"][names.LABEL_POOL]
        for create in learners
        if create.resource == names.PODS and claimed_devices(create.obj["spec"]) and not claimed_devices(_template(context, create))
    }
    return [Create(names.CLAIM_TEMPLATES, _claim_template(job, context.pools[pool])) for pool in sorted(claiming)]


def _template(context: ReconcileContext, pod: Create) -> Mapping[str, Any]:
    return context.pools[pod.obj["metadata"]["labels"][names.LABEL_POOL]].template.spec


def _claim_template(job: Job, pool: Pool) -> Obj:
    exactly: Obj = {
        "deviceClassName": names.GPU_DRIVER,
        "allocationMode": "ExactCount",
        "count": pool.shape.accelerators_per_host,
    }
    if products := product_names(CATALOGUE[pool.accelerator]):  # without names, only the labels of the nodes tell the kind
        written = ", ".join(f'"{product_name}"' for product_name in products)
        product = f'device.attributes["{names.GPU_DRIVER}"].productName.replace(" ", "-")'
        exactly["selectors"] = [{"cel": {"expression": f"{product} in [{written}]"}}]
    return {
        "apiVersion": names.CLAIM_TEMPLATES.api_version,
        "kind": names.CLAIM_TEMPLATES.kind,
        "metadata": owned(job, template_name(job, pool)),
        "spec": {
            "metadata": {"labels": {names.LABEL_JOB: job.name}},
            "spec": {"devices": {"requests": [{"name": names.ACCELERATOR_CLAIM, "exactly": exactly}]}},
        },
    }
