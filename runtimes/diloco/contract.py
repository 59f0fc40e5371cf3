"""The contract between the operator and the pods of a job. The only module that both planes share besides the wire.

A pod gets its identity from environment variables, and its task from two mounted volumes: the job file (JSON, `JobFile`) and its TLS
identity. It reports its end by its exit status (`Exit`); the syncer also by its termination message (`Result`). Everything in between
is in the syncer's reports over gRPC (`diloco.protocol`).

See docs/decisions/0273-default-outer-optimizer.md.
"""

from __future__ import annotations

import enum
import re
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

__all__ = [
    "BUNDLE_FILE",
    "ENDED_BY_PROGRAM",
    "ENDED_BY_TOKENS",
    "ENV_ACCELERATORS_PER_HOST",
    "ENV_ATTEMPT",
    "ENV_CLUSTER",
    "ENV_HOST",
    "ENV_HOSTS",
    "ENV_JOB_FILE",
    "ENV_LEADER_ADDRESS",
    "ENV_LISTEN_PORT",
    "ENV_LOCALITY",
    "ENV_POD_IP",
    "ENV_POOL",
    "ENV_PROCESSES_PER_HOST",
    "ENV_RELATIVE_SPEED",
    "ENV_STATE_DIR",
    "ENV_SYNCER_ADDRESS",
    "ENV_TERMINATION_LOG",
    "ENV_TLS_DIR",
    "ENV_UNIT",
    "HEARTBEAT",
    "JOB_FILE_KEY",
    "LEADER_PORT",
    "MOST_HELD_OUT_POINTS",
    "MOST_LOSS_POINTS",
    "MOST_PARTS",
    "MOST_PAUSE",
    "MOST_TOKENS",
    "MOUNT_JOB",
    "MOUNT_STATE",
    "MOUNT_TLS",
    "SYNCER_PORT",
    "TERMINATION_LOG",
    "TLS_IDENTITY_FILE",
    "TLS_ROOTS_FILE",
    "Bundle",
    "Checkpoint",
    "Exit",
    "Grace",
    "JobFile",
    "LastWords",
    "LearnerStates",
    "Merge",
    "MergeMethod",
    "OuterOptimizer",
    "Result",
    "StartFrom",
    "Training",
    "UnitResult",
    "copies_folder",
    "learner_host_name",
    "learner_identity",
    "operator_identity",
    "parse_last_words",
    "part_identity",
    "part_with_identity",
    "remote_snapshots",
    "syncer_host_name",
    "syncer_identity",
    "syncer_pod_name",
]

# --- environment of every pod of a job --------------------------------------------------------------------------------
ENV_JOB_FILE = "DILOCO_JOB_FILE"
"""Path of the mounted job file, JSON."""
ENV_TLS_DIR = "DILOCO_TLS_DIR"
"""Directory with `TLS_ROOTS_FILE` and `TLS_IDENTITY_FILE`, which may be replaced at any time by renewed ones."""
ENV_POD_IP = "DILOCO_POD_IP"
"""The pod's own address (downward API `status.podIP`)."""

ENV_TERMINATION_LOG = "DILOCO_TERMINATION_LOG"
"""Path of the container's termination message, JSON: of the syncer the job's result, of a learner why it ended."""

# --- environment of a learner -----------------------------------------------------------------------------------------
ENV_UNIT = "DILOCO_UNIT"
"""Name of the learner unit, unique in the job: `<pool>-<index>`."""
ENV_ATTEMPT = "DILOCO_ATTEMPT"
"""Number of this unit's attempt, from 1. The syncer refuses older attempts."""
ENV_POOL = "DILOCO_POOL"
"""Name of the pool that the unit belongs to."""
ENV_HOST = "DILOCO_HOST"
"""Index of this host within its unit, from 0. Host 0 connects to the syncer."""
ENV_HOSTS = "DILOCO_HOSTS"
"""Number of hosts of the unit."""
ENV_PROCESSES_PER_HOST = "DILOCO_PROCESSES_PER_HOST"
"""Processes (ranks) of the program on each host: `spec.pools[].processesPerHost`."""
ENV_ACCELERATORS_PER_HOST = "DILOCO_ACCELERATORS_PER_HOST"
"""Number of accelerators of each host; 0 for cpu."""
ENV_LEADER_ADDRESS = "DILOCO_LEADER_ADDRESS"
"""`host:port` of the side channel of host 0, where the ranks of a unit of several hosts meet."""
ENV_LOCALITY = "DILOCO_LOCALITY"
"""Where the unit runs, from far to near, with `/` between the parts, such as its region, zone and network block. Not set: not known."""
ENV_CLUSTER = "DILOCO_CLUSTER"
"""The cluster in which the unit runs, if it is not the syncer's. Units reach only those of their own cluster. Not set: the syncer's."""
ENV_SYNCER_ADDRESS = "DILOCO_SYNCER_ADDRESS"
"""`host:port` of the job's syncer."""
ENV_RELATIVE_SPEED = "DILOCO_RELATIVE_SPEED"
"""Speed of a simulated node relative to the real machine, in (0, 1]; every step is stretched by its inverse."""

# --- environment of the syncer ----------------------------------------------------------------------------------------
ENV_STATE_DIR = "DILOCO_STATE_DIR"
"""Directory of the syncer's volume: snapshots and the ledger live here."""
ENV_LISTEN_PORT = "DILOCO_LISTEN_PORT"
"""Port on which the syncer serves, on `DILOCO_POD_IP`."""

SYNCER_PORT = 7077
"""Port of the syncer's gRPC service."""
LEADER_PORT = 7078
"""Port of the side channel of a unit's host 0. With `hostNetwork` each unit has a port of its own instead."""
MOST_TOKENS = 1 << 53
"""The most tokens of a job: what a JSON number holds exactly."""
ENDED_BY_TOKENS = "Tokens"
"""The job has trained its token budget."""
ENDED_BY_PROGRAM = "Program"
"""A training program has ended the job."""
HEARTBEAT = 5.0
"""Seconds. A learner that has nothing else to say tells the syncer this often that its process is alive."""
MOST_PAUSE = 86400.0
"""Seconds. The longest pause between two steps that a program may announce."""
MOST_LOSS_POINTS = 64
"""Points of the loss history that a syncer reports, and that status shows."""
MOST_HELD_OUT_POINTS = 16
"""The same for the held-out loss."""
MOST_PARTS = 16
"""Other clusters in which units of a job can be."""
MOUNT_JOB = "/etc/diloco/job"
"""Where the job's ConfigMap is mounted; it has one key, `JOB_FILE_KEY`."""
MOUNT_TLS = "/etc/diloco/tls"
"""Where a pod's own certificate is mounted, with the job's certificate authorities."""
MOUNT_STATE = "/var/lib/diloco"
"""Where the syncer's volume is mounted."""
TERMINATION_LOG = "/dev/termination-log"
"""Where a kubelet takes the syncer's termination message from."""
JOB_FILE_KEY = "job.json"
"""Key of the job file in the job's ConfigMap."""
TLS_ROOTS_FILE = "ca.crt"
"""Certificates of the authorities that this job trusts, PEM; the present authority's is the first."""
TLS_IDENTITY_FILE = "identity.pem"
"""Private key and certificate of this pod, PEM. They are in one file so that a reader never gets half of a renewal."""
BUNDLE_FILE = "bundle.json"
"""File with a `Bundle`, in the bundle folder of a learner outside the job's cluster. Beside it are the job file and the two TLS files."""


# --- identities: the URI in a certificate -----------------------------------------------------------------------------
def learner_identity(job_uid: str, unit: str, attempt: int) -> str:
    """The identity of one attempt of a learner unit, which may join as this attempt only."""
    return f"diloco://{job_uid}/learner/{unit}/{attempt}"


def learner_host_name(job: str, namespace: str, unit: str, attempt: int) -> str:
    """The name in a learner's certificate. Learners that take its state require this name, whatever address they dial."""
    return f"{unit}-{attempt}.learner.{job}.{namespace}.svc"


def syncer_identity(job_uid: str) -> str:
    """The identity of the job's syncer as a server."""
    return f"diloco://{job_uid}/syncer"


def operator_identity(job_uid: str) -> str:
    """The identity of the operator as a client of the job's syncer, which may `Watch`."""
    return f"diloco://{job_uid}/operator"


def part_identity(job_uid: str, part: str) -> str:
    """The identity of the operator of a part's cluster as a client of the job's syncer, which may `Watch`."""
    return f"diloco://{job_uid}/part/{part}"


def part_with_identity(job_uid: str, identity: str) -> str:
    """Return the name of the job's part that has this identity. "" if none can have it."""
    name = identity.removeprefix(part_identity(job_uid, ""))
    return name if name and "/" not in name and identity == part_identity(job_uid, name) else ""


def remote_snapshots(uri: str, namespace: str, job: str, uid: str) -> str:
    """Return the folder below `spec.training.checkpoint.uri` with the copies of this job's snapshots."""
    return f"{uri.rstrip('/')}/{copies_folder(namespace, job, uid)}"


def copies_folder(namespace: str, job: str, uid: str) -> str:
    """The name of a job's folder below its `spec.training.checkpoint.uri`."""
    return f"{namespace}-{job}-{uid}"


def syncer_pod_name(job: str) -> str:
    """The name of the syncer's pod, which is also its host name in the job's headless Service."""
    return f"{job}-syncer"


def syncer_host_name(job: str, namespace: str) -> str:
    """The name in the syncer's certificate. Clients require this name, whatever address they dial."""
    return f"{syncer_pod_name(job)}.{job}.{namespace}.svc"


class Exit(enum.IntEnum):
    """Exit status of a pod of a job. The operator decides by these and by signals only."""

    COMPLETE = 0
    """The job reached its last step (learner: the syncer said so; syncer: the final snapshot is durable)."""
    CRASHED = 1
    """The training program raised."""
    BAD_CONTRACT = 64
    """The environment or the job file is missing or wrong."""
    REFUSED_LAYOUT = 65
    """The learner's parameters do not fit the job's: other names, shapes or fingerprint; or it takes sequence numbers for other samples.
    Restarting does not help."""
    REFUSED_NONFINITE = 66
    """The learner sent NaN or infinite parameters."""
    REFUSED_FENCED = 67
    """A newer attempt of the unit exists, or another process holds this identity."""
    REFUSED_UNAUTHENTICATED = 68
    """The syncer and this learner do not accept each other's certificate, or it has another identity."""
    BAD_STATE = 69
    """Syncer: the volume holds state that cannot be used, e.g. of another model."""
    REFUSED_QUARANTINED = 70
    """The learner's contributions were refused again and again as outliers."""
    RANK_LOST = 71
    """Another rank of the unit ended or was lost; the message names it."""
    BAD_START = 72
    """Syncer: the model of `spec.startFrom` cannot be read, or is none."""
    DRAINED = 143
    """SIGTERM was obeyed: state handed back, nothing lost."""


class LastWords(NamedTuple):
    """Why a learner's process ended, as its pod's termination message. The pod's own status may be that of a launcher such as torchrun."""

    status: int
    """Exit status of the process, see `Exit`."""
    rank: int | None
    """None if the unit has one process."""
    message: str
    """One line."""

    def __str__(self) -> str:
        return f"diloco: exit {self.status}{'' if self.rank is None else f', rank {self.rank}'}: {self.message}"


_LAST_WORDS = re.compile(r"diloco: exit (\d{1,3})(?:, rank (\d{1,6}))?: (.*)", re.ASCII)


def parse_last_words(line: str) -> LastWords | None:
    """None if the line is no last words."""
    match = _LAST_WORDS.fullmatch(line)
    if match is None:
        return None
    return LastWords(int(match[1]), None if match[2] is None else int(match[2]), match[3])


class _Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, defer_build=True)
    """`defer_build`: pydantic builds a model at its first use. A learner uses a few of them, so it starts sooner."""


class Grace(_Wire):
    """How long the syncer waits for more learners after the quorum is there (algorithm.md, the clock)."""

    max_steps: float = Field(
        1.0,
        ge=0,
        le=16,
        description="The longest such wait, in learner steps. After overlapSteps, an exchange with its quorum waits as long for missing "
        "answers.",
    )
    safety_factor: float = Field(
        0.8, ge=0, le=1, description="Share of the slack that it may use: overlapSteps x step time - (quorum time + sync time)."
    )


MergeMethod = Literal["RDA", "Average"]
"""`spec.training.merge.method`, see `diloco.algorithm.merge`."""


class Merge(_Wire):
    """How the learners' outer gradients become one."""

    method: MergeMethod = Field(
        "RDA",
        description="Radial-directional averaging, or the weighted average, which tensors of fewer than two dimensions always have.",
    )
    embeddings: MergeMethod = Field("Average", description="The method for embedding tensors.")


class OuterOptimizer(_Wire):
    """SGD with Nesterov momentum on the merged outer gradient."""

    learning_rate: float = Field(0.6, gt=0, le=10, description="Outer learning rate.")
    momentum: float = Field(
        0.3,
        ge=0,
        lt=1,
        description="Nesterov momentum. Publications of large models have 0.9, with a learning rate of 0.4 to 1; small models end far "
        "worse with that.",
    )


class LearnerStates(enum.StrEnum):
    """Whether learners store the state of their optimizers."""

    NEVER = "Never"
    ALWAYS = "Always"


class Checkpoint(_Wire):
    """Snapshots of the syncer."""

    every_steps: int = Field(240, ge=1, description="Outer steps between two snapshots.")
    keep: int = Field(3, ge=1, le=100, description="Complete snapshots to keep.")
    uri: str = Field(
        "",
        max_length=1024,
        description="Object store or folder for copies of snapshots and for what learners store: file://, s3://, gs://, az://, and what "
        "else fsspec has a driver for. Without it snapshots are on the syncer's volume alone. A job whose volume is lost goes on from it.",
    )
    learners: LearnerStates = Field(
        LearnerStates.NEVER,
        description="Whether each learner stores its inner state below `uri` after each snapshot, and takes it back once every process of "
        "the job has died. Never: optimizers begin without state then. Always needs `uri`, and pools whose templates let learners write "
        "there. It takes room for two states of each unit.",
    )


class Training(_Wire):
    """`spec.training`: what is trained how, on the syncer's clock."""

    steps: int = Field(ge=1, description="T, outer steps of the whole job, as the syncer counts them.")
    tokens: int | None = Field(
        None,
        ge=1,
        le=MOST_TOKENS,
        description="Token budget: the job ends at the outer step at which this many tokens are committed, if it has not done `steps` "
        "before. Absent: none.",
    )
    sync_interval: int = Field(24, ge=1, le=10000, description="H, local steps between two syncs of one fragment.")
    fragments: int = Field(24, ge=1, le=10000, description="P, number of fragments the parameters are cut into; at most syncInterval.")
    overlap_steps: int = Field(2, ge=0, description="tau, outer steps that a fragment's exchange may take; less than syncInterval.")
    quorum: int = Field(1, ge=1, description="K, learners that an outer step waits for; at most learners.min.")
    grace: Grace = Field(
        default_factory=Grace,
        description="How long an outer step waits, once the quorum is there, for learners that have not trained the fragment since they "
        "adopted it.",
    )
    merge: Merge = Field(default_factory=Merge)
    outer_optimizer: OuterOptimizer = Field(default_factory=OuterOptimizer)
    compression: Literal["None", "BFloat16", "Int4"] = Field("BFloat16", description="Coding of outer gradients on the wire.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)


class StartFrom(_Wire):
    """`spec.startFrom`: a model that exists."""

    uri: str = Field(
        min_length=1,
        max_length=1024,
        description="A file ….safetensors; a folder with a model as transformers saves it; a snapshot of another job; or a folder with "
        "snapshots of one job, whose newest one is taken. file:// (a path in the syncer's container), s3://, gs://, az://, and what "
        "else fsspec has a driver for.",
    )


class JobFile(_Wire):
    """The mounted job file. camelCase on disk."""

    name: str
    namespace: str
    uid: str
    training: Training
    start_from: StartFrom | None = None
    """The model that the job begins with; None if it begins with its first learner's."""


class Bundle(_Wire):
    """Who a learner outside the job's cluster is, and where it finds the syncer. camelCase on disk."""

    unit: str
    attempt: int = Field(ge=1)
    syncer: str
    """`host:port`, as this learner reaches it."""


class _Report(_Wire):
    """Operators of other versions read these and ignore fields that they do not know."""

    model_config = ConfigDict(extra="ignore")


class UnitResult(_Report):
    """What one unit contributed to the whole job."""

    unit: str
    tokens: int
    steps: int
    contributions: int


class Result(_Report):
    """The result of a job: the syncer's termination message. It has at most 4096 bytes, because a kubelet keeps no more."""

    step: int
    steps: int
    tokens: int
    contributions: int = 0
    """Contributions of all units that were merged."""
    refused: int = 0
    """Contributions of all units that came in time and were refused for their content."""
    refusal: str = ""
    """How often the most frequent cause occurred, and the syncer's message about one case; "" if none was refused."""
    loss: float | None = None
    held_out_loss: float | None = None
    units: list[UnitResult] = Field(default_factory=list)
    message: str = ""
    snapshot: str = ""
    """Folder of the final snapshot within the syncer's volume; "" if it is not known."""
    snapshot_copied: bool = False
    """That snapshot is below `spec.training.checkpoint.uri` too."""
    ended_by: str = ""
    """Why the job ended before its last step: `ENDED_BY_TOKENS` or `ENDED_BY_PROGRAM`; "" if it did not."""
    end_reason: str = ""
    """The reason that the program gave, with its unit."""
