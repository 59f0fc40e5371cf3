"""Incidental resources: network and virtual devices that do not keep a pool without accelerators off a node. Pure data.

Most nodes of a cloud offer some of them, and pods that request none run there as anywhere else.

See docs/decisions/0126-accelerator-catalogue.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IncidentalResource:
    """An incidental resource, or all resources of a domain if the pattern is `domain/*`."""

    pattern: str
    source: str
    """URL of the page or file that says which program offers it."""


WHOLE_DOMAIN = "/*"

BUILT_IN_INCIDENTAL = (
    # pod-eni, PrivateIPv4Address and efa.
    IncidentalResource("vpc.amazonaws.com/*", "https://github.com/aws/karpenter-provider-aws/blob/main/pkg/apis/v1/labels.go"),
    # One for each further network of the node, and one with the suffix .IP.
    IncidentalResource(
        "networking.gke.io.networks/*", "https://cloud.google.com/kubernetes-engine/docs/how-to/setup-multinetwork-support-for-pods"
    ),
    IncidentalResource("rdma/*", "https://github.com/Mellanox/k8s-rdma-shared-dev-plugin"),
    # kvm, tun and vhost-net.
    IncidentalResource("devices.kubevirt.io/*", "https://github.com/kubevirt/kubevirt/blob/main/pkg/virt-controller/services/template.go"),
)


def patterns(resources: Iterable[IncidentalResource]) -> dict[str, None]:
    """Return the patterns, as `covers` needs them."""
    return dict.fromkeys(each.pattern for each in resources)


def covers(known: dict[str, None], name: str) -> bool:
    """Whether a resource matches one of the patterns: its name is one, or its domain is that of one with `/*`."""
    return name in known or name.partition("/")[0] + WHOLE_DOMAIN in known
