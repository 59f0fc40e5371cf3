"""The objects that all units of a job share: configuration, certificates, volume and syncer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diloco_operator.plan import Create, Delete
from diloco_operator.reconcile.children.certificates import CertificateCheck, check_certificates
from diloco_operator.reconcile.children.configuration import ConfigurationChanges, configuration_changes
from diloco_operator.reconcile.children.retention import Retention, claim_retention
from diloco_operator.reconcile.children.syncer import SyncerChanges, start_blocked_by, syncer_changes
from diloco_operator.reconcile.children.volume import Volume, syncer_volume
from diloco_operator.reconcile.context import ReconcileContext, Rejection
from diloco_operator.reconcile.sentences import Sentence


@dataclass(frozen=True, slots=True)
class SharedObjects:
    """What to create and delete of them, and whether units may start."""

    configuration: ConfigurationChanges
    certificates: CertificateCheck
    retention: Retention
    syncer: SyncerChanges
    volume: Volume

    @property
    def blocks_units(self) -> Sentence | None:
        """Why no learner pod may be created yet; None when they may."""
        return start_blocked_by(self.syncer, self.rejected, self.volume, ready=self.configuration.ready and self.certificates.ready)

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
        """Objects that the API server rejected, and that it is too early to try again."""
        return (*self.certificates.rejected, *self.configuration.rejected, *self.syncer.rejected)

    @property
    def deadlines(self) -> Sequence[float | None]:
        return (*(rejection.retry_at for rejection in self.rejected), *self.syncer.deadlines, self.retention.retry_at)


def shared_objects(context: ReconcileContext) -> SharedObjects:
    """Return one step towards what the spec wants of them. The syncer's pod comes when the rest is there, or planned."""
    configuration, certificates = configuration_changes(context), check_certificates(context)
    syncer = syncer_changes(context, may_create=configuration.ready and certificates.ready)
    return SharedObjects(configuration, certificates, claim_retention(context), syncer, syncer_volume(context))
