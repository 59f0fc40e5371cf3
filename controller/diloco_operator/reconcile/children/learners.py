"""The creates of learner pods: whole attempts, and what is missing of one that an operator began before it died. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from diloco_operator.api import names
from diloco_operator.api.job import UnitState
from diloco_operator.fleet.node import Host
from diloco_operator.plan import WAVE_LEARNERS, Create
from diloco_operator.reconcile.children.pods import PodTemplateBase, learner_pods, learner_template_base
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord


class LearnerPods:
    """Makes the pods of attempts. What the pods of a pool have in common is made once."""

    def __init__(self, context: ReconcileContext) -> None:
        self._context = context
        self._bases: dict[str, PodTemplateBase] = {}

    def of_attempt(self, record: UnitStatusRecord, hosts: Sequence[Host]) -> list[Create]:
        """All pods of the record's attempt; none is created before its certificate is written."""
        job = self._context.observed.job
        secret = names.learner_secret_name(job.name, record.pool, record.name)
        pods = learner_pods(
            self._base(record.pool),
            unit=record.name,
            attempt=record.attempt,
            slice_name=record.slice,
            hosts=hosts,
            template_hash=record.template_hash,
        )
        return [Create(names.PODS, pod, wave=WAVE_LEARNERS, after=secret) for pod in pods]

    def _base(self, pool: str) -> PodTemplateBase:
        if pool not in self._bases:
            context = self._context
            self._bases[pool] = learner_template_base(context.observed.job, context.spec, context.pools[pool], context.observed.config)
        return self._bases[pool]


def missing_pods(
    context: ReconcileContext, pods: LearnerPods, records: Mapping[str, UnitStatusRecord], adopted: Iterable[str]
) -> list[Create]:
    """Pods of attempts that an operator had begun to make when it died."""
    creates: list[Create] = []
    for name in sorted(adopted):
        record = records[name]
        shape = context.shapes.get(record.pool)
        if record.state is not UnitState.STARTING or shape is None or not context.up_to_date(record):
            continue
        there = {pod.name for pod in context.learners[name] if pod.attempt == record.attempt}
        hosts = [host for slice_ in context.observed.fleet.resolve(shape, record.slice) or () for host in slice_.hosts]
        if len(hosts) == shape.hosts and len(there) < len(hosts):
            creates += [create for create in pods.of_attempt(record, hosts) if create.obj["metadata"]["name"] not in there]
    return creates
