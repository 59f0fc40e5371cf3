"""The objects that all units of a job share: configuration, certificates, volume and syncer. Pure.

The operator creates them with the first unit that gets hardware, and they stay from then on. A part has a Service only: the rest is at
home.

See docs/decisions/0206-before-units-leave.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from diloco_operator.api import names
from diloco_operator.plan import Create, Delete
from diloco_operator.reconcile.children import home_words
from diloco_operator.reconcile.children.certificates import NO_CERTIFICATES, CertificateCheck, check_certificates
from diloco_operator.reconcile.children.configuration import ConfigurationChanges, configuration_changes
from diloco_operator.reconcile.children.home import first_report_awaited, home_problem
from diloco_operator.reconcile.children.retention import Retention, claim_retention, is_claim_of
from diloco_operator.reconcile.children.syncer import SyncerChanges, start_blocked_by, syncer_changes
from diloco_operator.reconcile.children.volume import Volume, syncer_volume
from diloco_operator.reconcile.context import ReconcileContext, Rejection
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord


@dataclass(frozen=True, slots=True)
class SharedObjects:
    """Which shared objects to create and delete once they are needed, and whether units may start then."""

    configuration: ConfigurationChanges
    certificates: CertificateCheck
    retention: Retention
    syncer: SyncerChanges
    volume: Volume
    home_problem: str | None = None
    """Why units of a part cannot join the job at home, and what to do. None if nothing is known to be wrong."""

    @property
    def blocks_units(self) -> str | None:
        """Why no learner pod may be created yet. None if they may be."""
        return self._blocked_by(self.volume)

    @property
    def frees_hardware(self) -> bool:
        """Whether units wait for something that only a person can mend. Meanwhile they keep no hardware from other jobs."""
        return bool(
            self.rejected
            or self.taken
            or self.syncer.predecessor
            or self.syncer.overdue
            or self.configuration.kept
            or self.volume.certain
            or self.home_problem
        )

    @property
    def may_come(self) -> bool:
        """Whether nothing is known that keeps the shared objects from existing in a moment. A claim that does not exist yet is no obstacle:
        only once it is made does it show whether it gets a volume."""
        return self._blocked_by(Volume(self.volume.problem)) is None

    def _blocked_by(self, volume: Volume) -> str | None:
        if self.home_problem is not None:
            return home_words.waits_for_home(self.home_problem)
        return start_blocked_by(self.syncer, self.rejected, volume, ready=self.configuration.ready and self.certificates.ready)

    @property
    def creates(self) -> Sequence[Create]:
        return (*self.configuration.creates, *self.syncer.creates)

    @property
    def deletes(self) -> Sequence[Delete]:
        return (*self.configuration.deletes, *self.certificates.deletes, *self.syncer.deletes)

    @property
    def taken(self) -> Sequence[str]:
        """`<kind> <name>` of objects that do not belong to the job."""
        return [*self.configuration.taken, *self.certificates.taken, *self.syncer.taken]

    @property
    def rejected(self) -> Sequence[Rejection]:
        """Objects that the API server rejected and whose retry is not due yet."""
        return (*self.certificates.rejected, *self.configuration.rejected, *self.syncer.rejected)

    @property
    def deadlines(self) -> Sequence[float | None]:
        return (
            *(rejection.retry_at for rejection in self.rejected),
            *self.syncer.deadlines,
            self.retention.retry_at,
            self.volume.certain_at,
        )


def shared_objects(context: ReconcileContext) -> SharedObjects:
    """One step towards the shared objects that the spec wants. The syncer's pod comes once the other objects exist or are planned."""
    configuration = configuration_changes(context)
    if context.is_part:
        awaited = first_report_awaited(context)
        syncer = SyncerChanges(ready_for_learners=awaited is None, down=awaited)
        return SharedObjects(configuration, NO_CERTIFICATES, Retention(), syncer, Volume(), home_problem(context))
    certificates = check_certificates(context)
    syncer = syncer_changes(context, may_create=configuration.ready and certificates.ready and not context.spec_refused)
    return SharedObjects(configuration, certificates, claim_retention(context), syncer, syncer_volume(context))


def are_needed(context: ReconcileContext, records: Mapping[str, UnitStatusRecord], learners: Iterable[Create]) -> bool:
    """Whether the shared objects should exist: some do, units have slices or pods or get them now, the allotment would give slices to the
    job, or learners outside the cluster are expected. `learners`: the creates for units."""
    if context.spec.learners.outside or context.spec.parts or context.observed.allotted.prepares or _are_there(context) or context.learners:
        return True
    return any(record.slice for record in records.values()) or any(create.resource == names.PODS for create in learners)


def _are_there(context: ReconcileContext) -> bool:
    """Whether any shared object exists. Then the others are made as well: an operator may have died before it had made all."""
    job, children = context.observed.job, context.observed.children
    if context.syncer is not None or (children.volume_claim is not None and is_claim_of(children.volume_claim, job)):
        return True
    return any(child is not None and child.owner == job.uid for child in (children.config_map, children.service, children.authority))
