"""Where in the network a host stands, by its labels: the zone, in it the network blocks from the widest to the nearest, and in these the
domain of its NVLink. Pure.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from diloco_operator.accelerators.labels import NVLINK_DOMAIN
from diloco_operator.api.names import NODE_REGION, NODE_ZONE

type Domain = tuple[str, ...]
"""A place that contains hosts: () is the whole cluster, (zone,) a zone, (zone, block, ...) a network block in it. Hosts without the label
of a zone share the zone ""; a host without labels of network blocks is in none."""


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
    found = [labels.get(NODE_ZONE, "")]
    for cloud in NETWORK_LABELS:
        if cloud.keys[0] not in labels:
            continue
        for key in cloud.keys:
            if key not in labels:
                break
            found.append(labels[key])
        break
    if clique := labels.get(NVLINK_DOMAIN):
        found.append(clique)
    return tuple(found)


def shared_place(hosts: Iterable[Mapping[str, str]]) -> str:
    """Where hosts with these labels stand, from far to near, as far as all of them do: region, zone and network blocks with "/" between
    them; "" for no hosts."""
    places = [(labels.get(NODE_REGION, ""), *locality_of(labels)) for labels in hosts]
    shared = (parts[0] for parts in itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*places, strict=False)))
    return "/".join(part.replace("/", "-") for part in shared).rstrip("/")
