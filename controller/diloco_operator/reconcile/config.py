"""What an operator is told once, at its start, and every pass obeys. Pure data; the command line and the chart fill it."""

from __future__ import annotations

from dataclasses import dataclass

from diloco_operator.fleet.health import DisruptionSignals

DISRUPTION_TAINTS = (
    "cloud.google.com/impending-node-termination",
    "node.kubernetes.io/out-of-service",
    "ToBeDeletedByClusterAutoscaler",
    "aws-node-termination-handler/spot-itn",
)
"""Taint keys that announce or record the loss of a node: its units leave at once, and it does not count against them. Not among them are
`not-ready` and `unreachable`, which say no more than the node's condition and outlast it by some seconds; whoever names them here leaves
at once."""

DISRUPTION_LABELS = (("cloud.google.com/active-node-maintenance", "ONGOING"),)
"""Node labels (key, value) that mean the same."""

MAINTENANCE_LABELS = ("cloud.google.com/scheduled-maintenance-time",)
"""Node labels whose value is when maintenance begins, in seconds since the epoch."""

UNREACHABLE_TAINTS = ("node.kubernetes.io/out-of-service",)
"""Taint keys of a node whose kubelet will not answer any more: nobody there will confirm that a pod has ended."""


LONGEST_CERTIFICATE = 365 * 86400.0
"""Seconds. An authority is replaced more than three years before it runs out, so nothing that it signed outlives it."""


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """Durations are seconds."""

    syncer_image: str = "diloco-syncer:latest"
    """Image of the syncer's container when spec.syncer.template names none."""
    syncer_command: tuple[str, ...] = ("python", "-m", "diloco.syncer")
    """Command of the syncer's container when spec.syncer.template names none."""
    syncer_cpu: str = "500m"
    """CPU that a syncer requests whose template sets no resources; "" for none."""
    syncer_memory: str = "1Gi"
    """Memory likewise. The syncer holds the parameters, their momentum and one broadcast, all in float32: give it about 16 bytes a
    parameter in spec.syncer.template."""
    syncer_memory_limit: str = ""
    """Its memory limit; "" for none: whoever guesses too low kills the job's one syncer."""
    progress_interval: float = 10.0
    """Status is written at most this often when only progress figures changed."""
    resync_interval: float = 300.0
    """A job without any deadline of its own is looked at again after this long, as a safety net."""
    report_stale_after: float = 60.0
    """A report from the syncer older than this says nothing about now."""
    learner_grace: int = 30
    """terminationGracePeriodSeconds of learner pods whose template sets none; a spot notice is 30 s."""
    syncer_grace: int = 60
    """terminationGracePeriodSeconds of the syncer: it writes a snapshot before it goes."""
    dead_node_force_delete: float = 30.0
    """A learner pod on a node that does not answer is force-deleted this long after its deletion was asked for. Never a syncer."""
    not_ready_tolerance: float = 5.0
    """A node that says itself that it is NotReady for less than this is taken for a hiccup."""
    unheard_tolerance: float = 15.0
    """A node that nobody hears is left when for so long no other has fallen silent or been heard again: it may be the first of all, if the
    way to the API server is cut. Kubelets report every 10 s, and the node controller looks every 5 s."""
    outage_tolerance: float = 300.0
    """While most nodes are NotReady (55 % of them, and more than two) a node is not left for that for so long, and no longer while others
    change. A unit that stopped in truth is replaced after its stallTimeout all the same."""
    early_end_grace: float = 60.0
    """A learner that ends with status 0 while the syncer, this much later, still says that the job goes on, has failed."""
    refused_retry: float = 5.0
    """An object that the API server refused to make is tried again after this long, twice as long after every further refusal …"""
    refused_retry_max: float = 300.0
    """… and at least this often. A changed spec is tried at once."""
    placement_retry: float = 15.0
    """A job with units that found no slice looks again at least this often; the operator wakes it sooner when slices come free."""
    certificate_lifetime: float = 30 * 86400.0
    """How long the certificate of a learner or syncer holds; it is renewed when a third of that is left, without a restart."""
    secret_propagation: float = 180.0
    """How long kubelets may take to bring a changed Secret to the pods that mount it: their sync period and a little more."""
    maintenance_lead: float = 300.0
    """A node is left this long before its announced maintenance, and no unit starts there any more."""
    maintenance_over: float = 21600.0
    """An announcement is forgotten this long after its moment, if nobody took it away."""
    disruption_taints: tuple[str, ...] = DISRUPTION_TAINTS
    disruption_labels: tuple[tuple[str, str], ...] = DISRUPTION_LABELS
    maintenance_labels: tuple[str, ...] = MAINTENANCE_LABELS
    dead_taints: tuple[str, ...] = UNREACHABLE_TAINTS

    def __post_init__(self) -> None:
        if not 3 * self.secret_propagation <= self.certificate_lifetime <= LONGEST_CERTIFICATE or self.certificate_lifetime <= 0:
            raise ValueError(
                "certificateLifetime must be at least three times secretPropagation, or certificates run out before their renewal has "
                f"reached the pods, and at most {LONGEST_CERTIFICATE / 86400:.0f} days, not {self.certificate_lifetime:g} s with a "
                f"secretPropagation of {self.secret_propagation:g} s"
            )

    @property
    def disruption_signals(self) -> DisruptionSignals:
        """What the inventory must know of it: `Inventory(config.disruption_signals)`."""
        return DisruptionSignals(
            self.disruption_taints,
            self.disruption_labels,
            self.dead_taints,
            self.not_ready_tolerance,
            self.unheard_tolerance,
            self.outage_tolerance,
            self.maintenance_labels,
            self.maintenance_lead,
            self.maintenance_over,
        )
