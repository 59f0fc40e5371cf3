"""Learners outside the job's cluster: the address at which they find the syncer, and the Service behind it. Pure.

See docs/decisions/0257-learners-outside.md.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from typing import NamedTuple

from diloco import contract

from diloco_operator.api import names
from diloco_operator.api.spec import Spec
from diloco_operator.kube.client import Obj
from diloco_operator.reconcile.metadata import owned
from diloco_operator.reconcile.observe.children import Child
from diloco_operator.reconcile.observe.job import Job

_BRACKETED = re.compile(r"\[(?P<host>[^\]]*)\](:(?P<port>[0-9]{1,5}))?", re.ASCII)
_PLAIN = re.compile(r"(?P<host>[^:\[\]/ ]+)(:(?P<port>[0-9]{1,5}))?", re.ASCII)
_LAST_PORT = 65535


class Address(NamedTuple):
    """Where a syncer is, for learners outside its cluster."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read `host`, `host:port`, an IPv6 address, or `[address]:port`. Raises ValueError."""
    match = _BRACKETED.fullmatch(text) or _PLAIN.fullmatch(text)
    host, port = (match["host"], int(match["port"] or contract.SYNCER_PORT)) if match is not None else (text, contract.SYNCER_PORT)
    if not 1 <= port <= _LAST_PORT or (":" in host and not _is_ipv6(host)) or not host:
        raise ValueError(f"{text!r} is no address such as syncer.example.com, 203.0.113.7:7077 or [2001:db8::7]:7077")
    return Address(host, port)


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def external_address(configured: str, ingress: tuple[str, ...]) -> Address | None:
    """Where learners outside find the syncer: `spec.syncer.externalAddress`, else the load balancer. None if neither is known. Raises
    ValueError."""
    if configured:
        return parse_address(configured)
    return Address(ingress[0], contract.SYNCER_PORT) if ingress else None


def external_hosts(spec: Spec, service: Child | None) -> tuple[str, ...]:
    """Host names and addresses for the syncer's certificate, besides its name in the cluster."""
    hosts = list(service.ingress) if service is not None and spec.syncer.load_balancer is not None else []
    if spec.syncer.external_address:
        with contextlib.suppress(ValueError):  # the CRD's rules refuse what does not parse; another CRD may let it through
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
