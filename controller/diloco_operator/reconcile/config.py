"""The operator's configuration, read once at its start. Pure data; the command line and the chart fill it."""

from __future__ import annotations

from dataclasses import dataclass

from diloco_operator.fleet.health import DisruptionSignals
from diloco_operator.fleet.lifetime import LifetimeSignals

DISRUPTION_TAINTS = (
    "cloud.google.com/impending-node-termination",
    "node.kubernetes.io/out-of-service",
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "aws-node-termination-handler/spot-itn",
)
"""Taint keys that announce or record the loss of a node: its units leave at once, and this counts as a disruption, not as a failure. The
default leaves out `not-ready` and `unreachable`: they repeat the node's condition and stay some seconds longer. With them here, units leave
without waiting for the tolerances below."""

DISRUPTION_LABELS = (("cloud.google.com/active-node-maintenance", "ONGOING"),)
"""Node labels (key, value) that mean the same as those taints."""

MAINTENANCE_LABELS = ("cloud.google.com/scheduled-maintenance-time",)
"""Node labels whose value is the time when maintenance begins, in seconds since the epoch."""

END_ANNOTATIONS = ("node.gke.io/machine-termination-datetime",)
"""Node annotations whose value is the time when the node ends, such as 2026-11-20T21:00:00Z: units leave it ahead of that, as they do
ahead of maintenance. GKE writes this one for every machine with a limited run time, flex-start among them."""

LIFETIME_LABELS = ("cloud.google.com/gke-max-run-duration-seconds",)
"""Node labels whose value is how long the node may live, in seconds from its creation."""

FLEX_START_LABELS = (("cloud.google.com/gke-flex-start", "true"), ("cloud.google.com/gke-provisioning", "flex-start"))
"""Labels (key, value) of nodes that live `flexStartLifetime` at most, if none of the above says when they end."""

UNREACHABLE_TAINTS = ("node.kubernetes.io/out-of-service",)
"""Taint keys of a node whose kubelet will not answer any more, so that it cannot confirm the end of a pod."""


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
    """CPU request of a syncer whose template sets no resources. Empty: none."""
    syncer_memory: str = "1Gi"
    """Memory request of such a syncer. A model of 0.1 B parameters needs a little more: docs/sizes.md has the rule."""
    syncer_memory_limit: str = ""
    """Memory limit of such a syncer. Empty: none, since a limit that is too low kills the job's only syncer."""
    syncer_cpu_limit: str = ""
    """CPU limit of such a syncer. Empty: none. A namespace whose quota counts limits needs both."""
    assign_users: bool = True
    """Name the user and the groups of pods whose template names none. False leaves them to the cluster, as OpenShift wants it."""
    image_pull_secrets: tuple[str, ...] = ()
    """Names of Secrets with which the pods of jobs pull images, besides the Secrets of their templates. They are in the namespaces of the
    jobs."""
    storage_class_name: str = ""
    """StorageClass of a syncer's volume where spec.syncer.storage.className names none. Empty: the cluster's default."""
    progress_interval: float = 10.0
    """Shortest time between two writes of a status in which only progress figures changed."""
    resync_interval: float = 300.0
    """A job without a deadline of its own is reconciled again after this long, as a safety net."""
    report_stale_after: float = 60.0
    """The operator ignores a report of the syncer that is older than this."""
    learner_grace: int = 30
    """terminationGracePeriodSeconds of learner pods whose template sets none. A spot notice is 30 s."""
    syncer_grace: int = 60
    """terminationGracePeriodSeconds of the syncer, which writes a snapshot before it ends."""
    dead_node_force_delete: float = 30.0
    """A learner pod on a node that does not answer is force-deleted this long after its deletion. A syncer never is."""
    not_ready_tolerance: float = 5.0
    """Units stay on a node that reports NotReady itself for less than this."""
    unheard_tolerance: float = 15.0
    """Units stay for this long on a node whose readiness is unknown, and until no other node has changed for this long: while the API
    server is unreachable, nodes become NotReady one by one. Kubelets report every 10 s, and the node controller checks every 5 s."""
    outage_tolerance: float = 300.0
    """Units stay for this long on a NotReady node while most nodes are NotReady (55 % of them, and more than two). It is also the longest
    that they stay while other nodes keep changing. A unit that has really stopped is still replaced after its stallTimeout."""
    early_end_grace: float = 60.0
    """A learner that ended with status 0 has failed if the syncer still reports a running job this long after it."""
    refused_retry: float = 5.0
    """Time before the first retry of an object that the API server rejected. It doubles with every further rejection."""
    refused_retry_max: float = 300.0
    """Longest time between two such retries. A changed spec is tried at once."""
    minimum_hold: float = 60.0
    """No unit leaves a slice for another job that it got less than this ago, so jobs that come and go cost others at most one start in this
    time."""
    placement_retry: float = 15.0
    """A job with unplaced units is placed again at least this often, and as soon as slices become free."""
    unschedulable_retry: float = 5.0
    """Pause of a unit after it gave up a slice, because no scheduler bound its pods there. It doubles with every further time in a row."""
    unschedulable_retry_max: float = 300.0
    """Longest such pause."""
    avoid_unschedulable: float = 1800.0
    """The units of a job prefer other nodes for this long after one of them gave a node up."""
    certificate_lifetime: float = 30 * 86400.0
    """Lifetime of the certificate of a learner or syncer. It is renewed, without a restart, when a third of that is left."""
    secret_propagation: float = 180.0
    """Time that kubelets may take to bring a changed Secret to the pods that mount it: a little more than their sync period."""
    maintenance_lead: float = 300.0
    """Units leave a node this long before its announced maintenance, and none starts there from then on."""
    maintenance_over: float = 21600.0
    """An announcement of maintenance that stays on the node is ignored from this long after its time."""
    end_lead: float = 300.0
    """Units leave a node this long before its known end, and none starts there from then on."""
    flex_start_lifetime: float = 7 * 86400.0
    """Longest life of a flex-start node that does not say when it ends."""
    disruption_taints: tuple[str, ...] = DISRUPTION_TAINTS
    disruption_labels: tuple[tuple[str, str], ...] = DISRUPTION_LABELS
    maintenance_labels: tuple[str, ...] = MAINTENANCE_LABELS
    end_annotations: tuple[str, ...] = END_ANNOTATIONS
    lifetime_labels: tuple[str, ...] = LIFETIME_LABELS
    flex_start_labels: tuple[tuple[str, str], ...] = FLEX_START_LABELS
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
        """The part that the inventory needs: `Inventory(config.disruption_signals)`."""
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
            LifetimeSignals(self.lifetime_labels, self.flex_start_labels, self.flex_start_lifetime, self.end_lead),
        )
