"""Where the pods of an attempt may run: each on its node, or, if the unit is delegated, on any node that fits. Pure.

Pods of a delegated unit state everything that the unit needs of its nodes, because autoscaler and scheduler know nothing else: kind and
topology by the labels of the nodes, how near to each other they must be, and that no other unit shares them.

See docs/decisions/0171-delegated-units.md. See docs/decisions/0130-what-occupies-a-node.md.
See docs/decisions/0126-accelerator-catalogue.md.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diloco_operator.accelerators import NodeLabels, Sign, only_cloud, spoken_labels
from diloco_operator.api import names
from diloco_operator.api.spec import Capacity, Locality, Pool
from diloco_operator.fleet.affinity import REQUIRED
from diloco_operator.fleet.capacity import CapacityType, expressions
from diloco_operator.fleet.node import Host
from diloco_operator.fleet.slices import GROUP_SEPARATOR, Shape
from diloco_operator.kube.client import Obj
from diloco_operator.reconcile.grantors.interface import Grantor, PodPlace


def pinned_places(affinity: Mapping[str, Any], slice_name: str, hosts: Sequence[Host]) -> list[PodPlace]:
    """Pin each pod to its host, in the order of the hosts. `affinity`: the template's."""
    # The name of a group is the names of all its hosts, too long to be on every pod.
    everywhere = GROUP_SEPARATOR not in slice_name
    places = []
    for index, host in enumerate(hosts):
        annotations = {names.ANNOTATION_NODE: host.node}
        if everywhere or index < names.HOSTS_WITH_SLICE:
            annotations[names.ANNOTATION_SLICE] = slice_name
        places.append(PodPlace(pinned(affinity, host.node), annotations))
    return places


@dataclass(frozen=True, slots=True)
class NodeRequirements:
    """What a delegated unit needs of its nodes."""

    pool: Pool
    shape: Shape
    avoid: Collection[str]
    """Nodes on which no pod may start."""
    signs: Collection[Sign]
    """The dialects of labels that the nodes of the cluster speak."""
    claims: bool
    """See `PodPlace`."""


def delegated_places(template: Mapping[str, Any], needed: NodeRequirements, gang: str, grantor: Grantor) -> list[PodPlace]:
    """Return the same place for all pods of an attempt.

    Args:
        template: the PodSpec
        gang: see `gang_label`
    """
    annotations = {names.ANNOTATION_GRANTOR: grantor.name}
    selector, terms = _wanted(template, needed)
    affinity = _with_neighbours(template.get("affinity") or {}, terms, needed.pool, needed.shape, gang)
    place = PodPlace(affinity, annotations, selector=selector, never_preempts=not grantor.reads_priority, claims=needed.claims)
    return [place] * needed.shape.hosts


def gang_label(job_uid: str, unit: str, attempt: int) -> str:
    """The value of `names.LABEL_GANG`."""
    return hashlib.sha256(f"{job_uid}/{unit}/{attempt}".encode()).hexdigest()[:20]


def pinned(affinity: Mapping[str, Any], node: str) -> Obj:
    """Restrict the template's affinity to this node, by the name of the Node object: the label kubernetes.io/hostname may be missing, may
    differ from the name, and need not be unique. The scheduler still decides, so taints, resources and quotas of the node hold."""
    only = {"key": "metadata.name", "operator": "In", "values": [node]}
    return _with_terms(affinity, [{"matchFields": [only]}])


def _with_terms(affinity: Mapping[str, Any], more: Sequence[Obj]) -> Obj:
    """Require one of the terms `more`, too, in each of the affinity's own alternative terms."""
    nodes = affinity.get("nodeAffinity") or {}
    required = nodes.get(REQUIRED) or {}
    # A term without expressions matches no node. Joined with another it would match some, so it stays out.
    terms = [term for term in required.get("nodeSelectorTerms") or () if term.get("matchExpressions") or term.get("matchFields")]
    joined = [_joined(term, other) for term, other in itertools.product(terms, more)] if terms else list(more)
    return {**affinity, "nodeAffinity": {**nodes, REQUIRED: {**required, "nodeSelectorTerms": joined}}}


def _joined(term: Mapping[str, Any], other: Mapping[str, Any]) -> Obj:
    lists = {key: [*(term.get(key) or ()), *(other.get(key) or ())] for key in ("matchExpressions", "matchFields")}
    return {**term, **{key: requirements for key, requirements in lists.items() if requirements}}


# --- delegated units ---------------------------------------------------------------------------------------------------
def _wanted(template: Mapping[str, Any], needed: NodeRequirements) -> tuple[dict[str, str], list[Obj]]:
    """Labels that the node must have, and terms of affinity that are alternatives."""
    shape, capacity = needed.shape, needed.pool.capacity
    # By name, see `pinned`: each requirement has one value. Karpenter brings no node for pods that exclude one, be it by name or by label.
    without = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in sorted(needed.avoid)]
    # If no label of the nodes tells the kind, the claim selects it.
    labelled = not needed.claims or any(sign.accelerator == shape.accelerator for sign in needed.signs)
    kinds = [_hardware(labels, shape) for labels in (spoken_labels(shape.accelerator, needed.signs) if labelled else ())] or [[]]
    paid: list[list[Obj]] = [[]]
    if capacity not in (None, Capacity.SCAVENGED):
        paid = expressions(CapacityType(capacity.value), only_cloud(needed.signs))
    wanted = [[*kind, *how] for kind, how in itertools.product(kinds, paid)]
    selector: dict[str, str] = {}
    if len(wanted) == 1:  # Autopilot and node auto-provisioning of GKE take no alternatives, and make nodes for plain selectors
        of_template = template.get("nodeSelector") or {}
        plain = {each["key"]: each["values"][0] for each in wanted[0] if _is_plain(each)}
        # If the template selects another value, ours stays an expression: both must hold then, and kube-scheduler reports the conflict.
        other = {key for key, value in plain.items() if of_template.get(key, value) != value}
        wanted = [[each for each in wanted[0] if each["key"] not in plain or each["key"] in other]]
        selector = {key: value for key, value in plain.items() if key not in of_template}
    terms = [_joined({}, {"matchExpressions": each, "matchFields": without}) for each in wanted]
    return selector, [term for term in terms if term]


def _is_plain(expression: Obj) -> bool:
    """Whether the expression says that a label has one certain value."""
    return expression["operator"] == "In" and len(expression["values"]) == 1


def _with_neighbours(affinity: Mapping[str, Any], terms: Sequence[Obj], pool: Pool, shape: Shape, gang: str) -> Obj:
    extended = _with_terms(affinity, terms) if terms else dict(affinity)
    together, apart = _neighbours(pool, shape, gang)
    for key, more in (("podAffinity", together), ("podAntiAffinity", apart)):
        if more:
            rules = extended.get(key) or {}
            extended[key] = {**rules, REQUIRED: [*(rules.get(REQUIRED) or ()), *more]}
    return extended


def _hardware(labels: NodeLabels, shape: Shape) -> list[Obj]:
    """Expressions for the labels of the shape's nodes in one dialect."""
    wanted = {labels.key: list(labels.values)}
    if labels.qualifier:
        wanted[labels.dialect.qualifier] = [labels.qualifier]
    if shape.topology and labels.dialect.topology:
        wanted[labels.dialect.topology] = [shape.topology]
    if shape.topology and labels.dialect.count:
        wanted[labels.dialect.count] = [str(shape.chips_per_host)]
    return [{"key": key, "operator": "In", "values": values} for key, values in wanted.items()]


def _neighbours(pool: Pool, shape: Shape, gang: str) -> tuple[list[Obj], list[Obj]]:
    """Pod affinity terms: near which pods the pods of this unit must run, and near which they must not."""
    same_gang = {"labelSelector": {"matchLabels": {names.LABEL_GANG: gang}}}
    together: list[Obj] = []
    apart: list[Obj] = []
    if shape.topology and shape.hosts > 1:  # the node pool is one slice, and the unit takes all of it
        others = [{"key": names.LABEL_GANG, "operator": "Exists"}, {"key": names.LABEL_GANG, "operator": "NotIn", "values": [gang]}]
        together.append({**same_gang, "topologyKey": names.NODE_POOL})
        apart.append({"labelSelector": {"matchExpressions": others}, "namespaceSelector": {}, "topologyKey": names.NODE_POOL})
    elif shape.hosts > 1 and pool.locality is not Locality.ANY:
        together.append({**same_gang, "topologyKey": names.NODE_ZONE})
    if not shape.topology and not shape.divides:  # the unit shares its hosts with no other
        learners = {"matchLabels": {names.LABEL_COMPONENT: names.COMPONENT_LEARNER}}
        apart.append({"labelSelector": learners, "namespaceSelector": {}, "topologyKey": names.NODE_HOSTNAME})
    return together, apart
