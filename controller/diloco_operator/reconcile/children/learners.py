"""The creates of learner pods: whole attempts, and the missing pods of an attempt that an operator began before it died. Pure.

See docs/decisions/0040-learner-pods.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from diloco_operator.api import names
from diloco_operator.api.status import UnitState
from diloco_operator.fleet.locality import shared_place
from diloco_operator.fleet.node import Host
from diloco_operator.fleet.slices import Shape, named_hosts
from diloco_operator.plan import WAVE_LEARNERS, Create, Delete
from diloco_operator.reconcile.children.home import syncer_access
from diloco_operator.reconcile.children.peers import Peers
from diloco_operator.reconcile.children.places import NodeRequirements, delegated_places, gang_label, pinned_places
from diloco_operator.reconcile.children.pods import PodTemplateBase, learner_pods, learner_template_base
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.grantors.interface import Grantor, PodPlace
from diloco_operator.reconcile.grantors.registry import grantor_named
from diloco_operator.reconcile.observe.children import Child
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord

_MOST_LOOKED_AT = 64
"""Hosts that are looked at to tell what hosts of a kind are like."""


class LearnerPods:
    """Makes the pods of attempts. The parts that the pods of a pool share are made once."""

    def __init__(self, context: ReconcileContext) -> None:
        self._context = context
        self._bases: dict[str, PodTemplateBase] = {}

    def of_attempt(self, record: UnitStatusRecord, hosts: Sequence[Host]) -> list[Create]:
        """The host list and all pods of the record's attempt, each pinned to its host. No pod is created before its certificate is
        written."""
        views = [self._context.observed.fleet.node(host.node) for host in hosts]
        locality = shared_place(view.labels if view is not None else {} for view in views)
        affinity = self._base(record.pool).spec.get("affinity") or {}
        places = [
            place._replace(claims=view is not None and bool(view.product))
            for place, view in zip(pinned_places(affinity, record.slice, hosts), views, strict=True)
        ]
        return self._attempt(record, places, locality)

    def of_delegated(self, record: UnitStatusRecord, grantor: Grantor) -> list[Create]:
        """The host list and all pods of an attempt whose nodes this grantor brings."""
        context, pool = self._context, self._context.pools[record.pool]
        gang = gang_label(context.observed.job.uid, record.name, record.attempt)
        shape, fleet = context.shapes[record.pool], context.observed.fleet
        avoid = [node for node in context.hosts.avoided if fleet.node(node) is not None]
        needed = NodeRequirements(pool, shape, avoid, fleet.signs, self._all_claim(shape))
        places = delegated_places(self._base(record.pool).spec, needed, gang, grantor)
        return self._attempt(record, grantor.places(context, record, places))

    def _all_claim(self, shape: Shape) -> bool:
        """Whether hosts of this shape exist and only DRA offers their accelerators. Nodes that are still to come are taken to be like
        them."""
        fleet = self._context.observed.fleet
        views = [fleet.node(slice_.hosts[0].node) for slice_ in itertools.islice(fleet.slices(shape.slice_shape), _MOST_LOOKED_AT)]
        return bool(views) and all(view is not None and view.product for view in views)

    def _attempt(self, record: UnitStatusRecord, places: Sequence[PodPlace], locality: str = "") -> list[Create]:
        job = self._context.observed.job
        secret = names.learner_secret_name(job.name, record.pool, record.name)
        pods = learner_pods(
            self._base(record.pool),
            unit=record.name,
            attempt=record.attempt,
            places=places,
            locality=locality,
            template_hash=record.template_hash,
        )
        return [*self.host_list(record, len(places)), *(Create(names.PODS, pod, wave=WAVE_LEARNERS, after=secret) for pod in pods)]

    def host_list(self, record: UnitStatusRecord, hosts: int) -> list[Create]:
        """The host list of the record's attempt, if its pods need one and it does not exist."""
        job, existing = self._context.observed.job, self._context.observed.children.host_lists
        obj = Peers(job, self._context.pools[record.pool], record.name, record.attempt, hosts).host_list()
        return [Create(names.CONFIG_MAPS, obj)] if obj is not None and obj["metadata"]["name"] not in existing else []

    def _base(self, pool: str) -> PodTemplateBase:
        if pool not in self._bases:
            context = self._context
            observed = context.observed
            self._bases[pool] = learner_template_base(
                observed.job, context.spec, context.pools[pool], observed.config, observed.non_preempting, syncer_access(context)
            )
        return self._bases[pool]


def missing_pods(
    context: ReconcileContext, pods: LearnerPods, records: Mapping[str, UnitStatusRecord], adopted: Iterable[str]
) -> list[Create]:
    """The missing pods of attempts that an operator had begun to create when it died."""
    creates: list[Create] = []
    for name in sorted(adopted):
        record = records[name]
        shape = context.shapes.get(record.pool)
        if record.state is not UnitState.STARTING or shape is None or not context.up_to_date(record):
            continue
        existing = context.attempt_pods(record)
        if len(existing) >= shape.hosts:
            continue
        existing_hosts = {str(pod.host) for pod in existing}
        grantor = grantor_named(next((pod.grantor for pod in existing if pod.grantor), ""))
        if grantor is not None:
            attempt = pods.of_delegated(record, grantor)
        else:
            hosts = named_hosts(context.observed.fleet, shape, record.slice)
            attempt = pods.of_attempt(record, hosts) if len(hosts) == shape.hosts else []
        creates += [create for create in attempt if create.obj["metadata"]["labels"].get(names.LABEL_HOST) not in existing_hosts]
    return creates


def missing_host_lists(
    context: ReconcileContext, pods: LearnerPods, records: Mapping[str, UnitStatusRecord], adopted: Iterable[str]
) -> list[Create]:
    """Host lists that were deleted before the pods that need them started. The lists of `adopted` units come with their pods."""
    creates: list[Create] = []
    for name in context.learners.keys() - set(adopted):
        record = records[name]
        shape = context.shapes.get(record.pool)
        if shape is not None and record.state is UnitState.STARTING and context.up_to_date(record):
            creates += pods.host_list(record, shape.hosts)
    return context.without_rejected(creates)[0]


def outdated_host_lists(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> list[Delete]:
    """Deletes of the host lists of attempts that have ended or never began. `records`: as this plan's status will have them."""
    job = context.observed.job
    return [
        Delete(names.CONFIG_MAPS, job.namespace, child.name, child.uid, why=f"no pod of {child.unit} needs it")
        for child in context.observed.children.host_lists.values()
        if child.owner == job.uid and not child.deleting and not _is_needed(context, child, records.get(child.unit))
    ]


def _is_needed(context: ReconcileContext, host_list: Child, record: UnitStatusRecord | None) -> bool:
    if record is None or not record.running or record.attempt != host_list.attempt:
        return False
    if not context.up_to_date(record):
        return True  # the template that tells how many hosts the attempt has is gone, so keep whatever list there is
    return names.lists_hosts(host_list.name, context.shapes[record.pool].hosts)
