"""The claims by which learner pods get the GPUs of hosts that only DRA offers, in the place of a request of them. Pure.

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
    """Return the resources of a container that claims the accelerators which it requests here."""
    amounts = {kind: {name: amount for name, amount in (resources.get(kind) or {}).items() if name != NVIDIA_GPU} for kind in _AMOUNTS}
    claims = [*(resources.get("claims") or ()), {"name": names.ACCELERATOR_CLAIM}]
    return {**resources, **amounts, "claims": claims}


def with_claim(job: Job, pool: Pool, spec: Mapping[str, Any]) -> Obj:
    """Return a pod's spec with the claim."""
    claim = {"name": names.ACCELERATOR_CLAIM, "resourceClaimTemplateName": template_name(job, pool)}
    return {**spec, "resourceClaims": [*(spec.get("resourceClaims") or ()), claim]}


def claim_templates(context: ReconcileContext, learners: Iterable[Create]) -> list[Create]:
    """Return the templates of what these pods claim: one for each pool. They are not followed; one that is there already is success."""
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
    if products := product_names(CATALOGUE[pool.accelerator]):  # else the labels of the nodes alone tell the kind
        written = ", ".join(f'"{each}"' for each in products)
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
