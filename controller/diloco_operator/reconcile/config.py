"""What an operator is told once, at its start, and every pass obeys. Pure data; the command line and the chart fill it."""

from __future__ import annotations

from dataclasses import dataclass

from diloco_operator.fleet.health import DisruptionSigns

DISRUPTION_TAINTS = (
    "cloud.google.com/impending-node-termination",
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/out-of-service",
    "ToBeDeletedByClusterAutoscaler",
    "aws-node-termination-handler/spot-itn",
)
"""Taint keys that announce or record the loss of a node: its units leave at once, and it does not count against them."""

DISRUPTION_LABELS = (("cloud.google.com/active-node-maintenance", "ONGOING"),)
"""Node labels (key, value) that mean the same."""

DEAD_TAINTS = ("node.kubernetes.io/unreachable", "node.kubernetes.io/out-of-service", "node.kubernetes.io/not-ready")
"""Taint keys of a node whose kubelet does not answer: nobody there will confirm that a pod has ended."""


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """Durations are seconds."""

    syncer_image: str = "diloco-syncer:latest"
    """Image of the syncer's container when spec.syncer.template names none."""
    syncer_command: tuple[str, ...] = ("python", "-m", "diloco.syncer")
    progress_interval: float = 5.0
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
    """A node that is NotReady without a taint for less than this is taken for a hiccup."""
    early_end_grace: float = 60.0
    """A learner that ends with status 0 while the syncer, this much later, still says that the job goes on, has failed."""
    placement_retry: float = 15.0
    """A job with units that found no slice looks again at least this often; the operator wakes it sooner when slices come free."""
    disruption_taints: tuple[str, ...] = DISRUPTION_TAINTS
    disruption_labels: tuple[tuple[str, str], ...] = DISRUPTION_LABELS
    dead_taints: tuple[str, ...] = DEAD_TAINTS

    @property
    def signs(self) -> DisruptionSigns:
        """What the inventory must know of it: `Inventory(config.signs)`."""
        return DisruptionSigns(self.disruption_taints, self.disruption_labels, self.dead_taints, self.not_ready_tolerance)
