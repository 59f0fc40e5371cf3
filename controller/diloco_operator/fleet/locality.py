"""Where in the network a host is, by its labels: its zone, the network blocks in it from the widest to the nearest, and in these its NVLink
domain. Pure.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from diloco_operator.accelerators.labels import NVLINK_DOMAIN
from diloco_operator.api.names import NODE_REGION, NODE_ZONE

type Domain = tuple[str, ...]
"""A place that contains hosts: () is the whole cluster, (zone,) a zone, (zone, block, ...) a network block in it. Hosts without a zone
label are in the zone "". Hosts without labels of network blocks are in no block."""


@dataclass(frozen=True, slots=True)
class NetworkLabels:
    """How one cloud labels the network blocks of a node."""

    source: str
    """URL of the page that documents these labels."""
    keys: tuple[str, ...]
    """From the widest block to the nearest one."""


NETWORK_LABELS = (
    NetworkLabels(
        "https://cloud.google.com/ai-hypercomputer/docs/workloads/schedule-gke-workloads-tas",
        ("cloud.google.com/gce-topology-block", "cloud.google.com/gce-topology-subblock"),
    ),
    NetworkLabels(
        "https://docs.aws.amazon.com/eks/latest/userguide/ml-workload-topology.html",
        tuple(f"topology.k8s.aws/network-node-layer-{layer}" for layer in range(1, 5)),
    ),
)


def locality_of(labels: Mapping[str, str]) -> Domain:
    """Return the nearest domain that contains a host with these labels. A block counts only if all wider ones are labelled too."""
    parts = [labels.get(NODE_ZONE, "")]
    for cloud in NETWORK_LABELS:
        if cloud.keys[0] not in labels:
            continue
        for key in cloud.keys:
            if key not in labels:
                break
            parts.append(labels[key])
        break
    if clique := labels.get(NVLINK_DOMAIN):
        parts.append(clique)
    return tuple(parts)


def shared_place(hosts: Iterable[Mapping[str, str]]) -> str:
    """Return the nearest place that contains all hosts with these labels: region, zone and network blocks, with "/" between them. "" for no
    hosts."""
    places = [(labels.get(NODE_REGION, ""), *locality_of(labels)) for labels in hosts]
    shared = (parts[0] for parts in itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*places, strict=False)))
    return "/".join(part.replace("/", "-") for part in shared).rstrip("/")
