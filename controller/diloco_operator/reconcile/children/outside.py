"""Learners outside the job's cluster: the address at which they find the syncer, and the Service behind it. Pure.

See docs/decisions/0257-learners-outside.md.
"""

from __future__ import annotations

import contextlib

from diloco import contract

from diloco_operator.api import names
from diloco_operator.api.addresses import Address, parse_address
from diloco_operator.api.spec import Spec
from diloco_operator.kube.client import Obj
from diloco_operator.reconcile.metadata import owned
from diloco_operator.reconcile.observe.children import Child
from diloco_operator.reconcile.observe.job import Job


def external_address(configured: str, ingress: tuple[str, ...]) -> Address | None:
    """Where learners outside find the syncer: `spec.syncer.externalAddress`, else the load balancer. None if neither is known. Raises
    ValueError."""
    if configured:
        return parse_address(configured)
    return Address(ingress[0], contract.SYNCER_PORT) if ingress else None


def load_balancer_hosts(job: Job, service: Child | None) -> tuple[str, ...]:
    """Host names and addresses of the job's load balancer. A Service of its name that belongs to another object leads elsewhere."""
    return service.ingress if service is not None and service.owner == job.uid else ()


def external_hosts(job: Job, spec: Spec, service: Child | None) -> tuple[str, ...]:
    """Host names and addresses for the syncer's certificate, besides its name in the cluster."""
    hosts = list(load_balancer_hosts(job, service)) if spec.syncer.load_balancer is not None else []
    if spec.syncer.external_address:
        with contextlib.suppress(ValueError):  # such a spec is refused, and what runs still needs its certificates
            hosts.insert(0, parse_address(spec.syncer.external_address).host)
    return tuple(dict.fromkeys(hosts))


def external_service(job: Job, spec: Spec) -> Obj | None:
    """The Service of type LoadBalancer before the syncer. None if the job wants none."""
    wanted = spec.syncer.load_balancer
    if wanted is None:
        return None
    metadata = owned(job, names.external_service_name(job.name))
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**metadata, **({"annotations": dict(wanted.annotations)} if wanted.annotations else {})},
        "spec": {
            "type": "LoadBalancer",
            **({"loadBalancerClass": wanted.class_name} if wanted.class_name else {}),
            "selector": {names.LABEL_JOB: job.name, names.LABEL_COMPONENT: names.COMPONENT_SYNCER},
            # The syncer encrypts, so a load balancer can only pass bytes on.
            "ports": [{"name": "grpc", "appProtocol": "tls", "port": contract.SYNCER_PORT, "targetPort": contract.SYNCER_PORT}],
        },
    }
