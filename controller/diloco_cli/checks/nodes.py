"""Checks of the nodes: accelerators of the catalogue and others, drivers that do not run, and unknown devices. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from diloco.wording import plural
from diloco_operator.accelerators import CPU, identify
from diloco_operator.accelerators.labels import NVLINK_DOMAIN
from diloco_operator.api import names
from diloco_operator.fleet import DisruptionSignals, Inventory, NodeView, project_node
from diloco_operator.fleet.device_pools import pools_of, with_claimable
from diloco_operator.fleet.devices import telling
from diloco_operator.fleet.nearby import Oddity, oddity
from diloco_operator.fleet.slice_kinds import kind_of
from diloco_operator.kube.client import Obj
from diloco_operator.kube.fields import MalformedField

from diloco_cli.checks.model import ASK, Check, Facts, Finding, Unreadable, named, ok, warning

COMPUTE_DOMAINS = "resource.nvidia.com"
"""API group of ComputeDomain: https://github.com/NVIDIA/k8s-dra-driver-gpu."""
_CLUSTER = "cluster"
UNSEEN = "you may not list resource slices: GPUs that only DRA offers are not seen"


def inventory_of(nodes: Iterable[Obj], signals: DisruptionSignals, now: float, slices: Iterable[Obj] = ()) -> Inventory:
    """The fleet as the operator sees it. A node that cannot be read is left out; the operator's own messages name it. For `slices` see
    `views`."""
    inventory = Inventory(signals)
    inventory.advance(now)
    for node in views(nodes, slices):
        inventory.update_node(node)
    return inventory


def views(nodes: Iterable[Obj], slices: Iterable[Obj] = ()) -> Iterator[NodeView]:
    """Yield the nodes that can be read. `slices` are the ResourceSlices with which DRA offers GPUs."""
    pools = pools_of(slices)
    for node in nodes:
        try:
            view = project_node(node)
        except MalformedField:
            continue
        yield with_claimable(view, pools.products(view.name))


def _seen(facts: Facts) -> Iterator[NodeView]:
    return views(facts.of(names.NODES), facts.gpu_slices)


def accelerators(facts: Facts) -> Iterator[Finding]:
    """Count the hosts of each kind, and find accelerators that no pool gets by naming a kind."""
    if isinstance(facts.objects.get(names.RESOURCE_SLICES), Unreadable):
        yield warning(Check.NODES, _CLUSTER, UNSEEN, ASK)
    kinds: Counter[str] = Counter()
    odd: dict[Oddity, list[str]] = {}
    for node in _seen(facts):
        kind = kind_of(node)
        if (why := oddity(node, kind)) is not None:
            odd.setdefault(why, []).append(node.name)
        elif kind is not None:
            kinds[f"{kind.accelerator} {kind.topology}".rstrip()] += 1
    if kinds or not odd:
        hosts = ", ".join(f"{count} of {kind}" for kind, count in sorted(kinds.items()))
        yield ok(Check.NODES, _CLUSTER, f"hosts: {hosts or 'none yet'}")
    for why, nodes in odd.items():
        has = "have" if len(nodes) > 1 else "has"
        remedy = why.remedy or "see docs/operator.md, Further accelerators"
        message = f"{_count(nodes)} {has} {why.what}: no pool gets them for naming a kind"
        yield warning(Check.NODES, _nodes(nodes), message, remedy)


def drivers(facts: Facts) -> Iterator[Finding]:
    """Find nodes whose labels name an accelerator that they do not offer, because a driver or plugin is missing, and NVLink domains without
    the driver with which several hosts use them."""
    silent: dict[tuple[str, str], list[str]] = {}
    known, domains = 0, []
    for node in _seen(facts):
        identified = identify(node.kind_labels)
        if identified is None:
            continue
        known += 1
        kind, _ = identified
        if not dict(node.devices).get(kind.resource):
            silent.setdefault((kind.name, kind.resource), []).append(node.name)
        if NVLINK_DOMAIN in node.labels:
            domains.append(node.name)
    for (kind_name, resource), nodes in silent.items():
        has = "are" if len(nodes) > 1 else "is"
        message = f"{_count(nodes)} {has} {kind_name} by label, but offer{'' if len(nodes) > 1 else 's'} no {resource}"
        remedy = "start the driver and the device plugin there, or for GPUs NVIDIA's DRA driver, or wait until they have started"
        yield warning(Check.DRIVERS, _nodes(nodes), message, remedy)
    if domains and COMPUTE_DOMAINS not in facts.groups:
        message = f"the nodes are in NVLink domains ({NVLINK_DOMAIN}), and the cluster has no ComputeDomain ({COMPUTE_DOMAINS})"
        remedy = "install NVIDIA's DRA driver, or units of several hosts do not use NVLink between them"
        yield warning(Check.DRIVERS, _nodes(domains), message, remedy)
    if not silent:
        yield ok(Check.DRIVERS, _CLUSTER, f"{known} of {known} hosts with a known accelerator offer it" if known else "no driver is needed")


def devices(facts: Facts) -> Iterator[Finding]:
    """Find devices that keep cpu pools from nodes, because they are neither accelerators nor known as incidental."""
    offering: dict[str, list[str]] = {}
    for node in _seen(facts):
        kind = kind_of(node)
        if kind is not None and kind.accelerator == CPU and oddity(node, kind) is None:
            for name, _ in telling(node.devices):
                offering.setdefault(name, []).append(node.name)
    for name, nodes in sorted(offering.items()):
        offer = plural(len(nodes), "node offers", "nodes offer")
        message = f"{offer} {name}, which is neither an accelerator nor incidental: it keeps cpu pools away"
        remedy = f"if no pod works with it, add it to incidentalResources of the chart: {name}; else request it in the pools' templates"
        yield warning(Check.DEVICES, _nodes(nodes), message, remedy)
    if not offering:
        yield ok(Check.DEVICES, _CLUSTER, "no device keeps a cpu pool from a node")


def hosts_by_kind(facts: Facts) -> Mapping[str, int]:
    kinds = (kind_of(node) for node in _seen(facts))
    return Counter(kind.accelerator for kind in kinds if kind is not None)


def _nodes(nodes: Sequence[str]) -> str:
    return f"{'node' if len(nodes) == 1 else 'nodes'} {named(nodes)}"


def _count(nodes: Sequence[str]) -> str:
    return plural(len(nodes), "node")
