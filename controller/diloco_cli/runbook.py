"""What a person checks and does for each reason of a job, a unit or a pool: the table behind docs/runbook and `kubectl diloco explain`.

`api.reasons` says what each reason means. See docs/decisions/0176-explain-and-doctor.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from diloco_operator.api.names import LABEL_HOME, syncer_pod_name

URL = "https://github.com/diloco-operator/diloco-operator/blob/main/docs/runbook"


@dataclass(frozen=True, slots=True)
class Advice:
    """Each entry is a sentence or two of Markdown, with commands as a user types them."""

    check: tuple[str, ...]
    act: tuple[str, ...]


_EXPLAIN = "`kubectl diloco explain JOB` says what is missing, since when, and what happens next by itself."
_LOG = "`kubectl diloco logs JOB UNIT` has the program's last lines; `-p` shows the failed attempt before."
_NODE = "`kubectl describe node NODE` shows taints, conditions, and who uses the node."
_RETRY = "When the cause is gone: `kubectl diloco retry JOB`."
_SYNCER = syncer_pod_name("JOB")
_WAIT = "Nothing; it passes by itself."

RUNBOOK: Mapping[str, Advice] = {
    # --- Accepted ---
    "SpecInvalid": Advice(
        ("The message names every field that cannot be used.", "`diloco validate FILE` says the same without a cluster."),
        ("Correct the fields and apply the job again; pods that run stay until then, and none starts.",),
    ),
    "RightsMissing": Advice(
        (
            "The message names the right: verb, resource and namespace.",
            "`kubectl diloco doctor JOB` lists all rights that the operator lacks.",
        ),
        ("Give the operator's ServiceAccount the role: the chart does it for namespaces in `watchNamespaces`, or for all.",),
    ),
    # --- Placed, units and pools that wait ---
    "InsufficientCapacity": Advice(
        (_EXPLAIN, "`kubectl diloco plan FILE` shows what would run where, and after `--add` or `--without`."),
        ("Follow the remedies of the pools: add nodes, raise another pool's `learners.max`, or lower `learners.min`.", "Else wait."),
    ),
    "CannotStart": Advice(
        ("`Training` says what is wrong: a quota, a name that is taken, or a StorageClass that binds nothing.",),
        ("Follow `Training`. The job takes hardware again as soon as it can start.",),
    ),
    "NoCapacity": Advice(
        (_EXPLAIN,),
        ("Add nodes, raise another pool's `learners.max`, or wait: the unit starts as soon as a slice is free.",),
    ),
    "NoFreeSlice": Advice(
        (
            (
                "`status.pools[].message` says who holds the slices, why free ones do not serve (avoided, tainted, too small, in several "
                "zones, kept for another job), and what would help."
            ),
            _NODE,
        ),
        (
            "Held by another job: ask its owner to lower `learners.max`, or raise this job's `learners.min` or priority.",
            "Used by other pods: end them, or wait. Tainted: add the toleration to the pool's template, or remove the taint.",
            "Too small: lower the requests of the template. In several zones: lower `hosts`, or set `locality: Any` for the pool.",
        ),
    ),
    "NoMatchingNodes": Advice(
        (
            (
                "`status.pools[].message` says which nodes come close: another topology, fewer accelerators, a product that is not in the "
                "catalogue."
            ),
            "`kubectl get nodes --show-labels` shows by which labels they are known.",
        ),
        ("Add a pool of what there is, or nodes of what the pool asks for.", "An unknown product: add a row to the catalogue file."),
    ),
    "AtMaximum": Advice(("`pools[].learners.max` is the number of units that run.",), ("Raise it if the pool is to grow.",)),
    "JobAtMaximum": Advice(("`learners.max` is the number of units that run.",), ("Raise it if the job is to grow.",)),
    "SwitchedOff": Advice(("`pools[].learners.max` is 0.",), ("Raise it to use the pool.",)),
    "WaitingForNodes": Advice(
        (
            "The message says who was asked, and when.",
            "Karpenter's NodeClaims answer.",
        ),
        (
            "Wait: after `pools[].provisioning.timeout` other pools are asked, and this one again after a pause.",
            "If no nodes ever come, look at the autoscaler's log, its limits and the cloud's quota.",
        ),
    ),
    "NotProvisioned": Advice(
        ("The message has the autoscaler's words.",),
        (
            "Nothing, if capacity is short for a while: the unit asks again, and other pools are asked meanwhile.",
            "Raise `pools[].provisioning.timeout` if nodes come later than that.",
        ),
    ),
    "WaitingForQuota": Advice(
        ("Kueue's Workload of the unit's pods shows the answer; the unit's message has its words.",),
        ("Raise the ClusterQueue's quota, lower `learners.min`, or wait for other workloads to end.",),
    ),
    "KueueMissing": Advice(
        ("The message says whether Kueue's definitions are missing, or the operator's configuration leaves Kueue out.",),
        ("Install Kueue with the pod integration, or take `queueName` out of the spec.",),
    ),
    "PodsRefused": Advice(
        (
            "The message has the API server's words and the time of the next try.",
            "`kubectl diloco doctor JOB` checks quota, policies and rights.",
        ),
        ("Follow the message: quota, Pod Security, an admission policy, or an invalid field. A changed spec is tried at once.",),
    ),
    "Scheduling": Advice(
        (_NODE, "`kubectl describe pod POD` has kube-scheduler's words."),
        ("Wait. After `learners.timeouts.schedule` the unit gives its slice up and tries others.",),
    ),
    "Unschedulable": Advice(
        ("The message has kube-scheduler's words.", _NODE),
        (
            "Lower the requests of the template, or free the node. The unit pauses, and prefers other nodes; this is no failure.",
            "A slow scheduler: raise `learners.timeouts.schedule`.",
        ),
    ),
    "NodeTaken": Advice(
        ("The message names the node; another operator's learner was there first.",),
        ("Nothing. If it repeats, separate the operators' nodes by a nodeSelector in the templates.",),
    ),
    "HostRefused": Advice(
        ("The message names the pod, and has the kubelet's reason.", "`kubectl describe node NODE` shows its devices and conditions."),
        ("Mend the host: its device plugin, or what takes its processors and memory. The unit tries other hosts first.",),
    ),
    "HostCannotPull": Advice(
        ("The message has the kubelet's words, and names a host that runs the same template.",),
        (
            "Mend the host: its DNS, its way to the registry, its credentials or mirror. The unit tries other hosts first.",
            "If each further host says the same, the registry no longer has the image: it runs where it was pulled before.",
        ),
    ),
    # --- a unit's start ---
    "StartingContainers": Advice(
        ("`kubectl describe pod POD` says which volume, network or init container it waits for.",),
        ("Follow it. A slow init container: raise `learners.timeouts.start`.",),
    ),
    "StartTimeout": Advice(
        ("The message says what was not ready.", "`kubectl describe pod POD` has the events."),
        ("Mend the volume, network or init container, or raise `learners.timeouts.start`.",),
    ),
    "PullingImages": Advice(
        ("`kubectl describe pod POD` says which image.",),
        ("Wait. A large image: bring it to the nodes before, or raise `learners.timeouts.pull`.",),
    ),
    "PullTimeout": Advice(
        ("`kubectl describe pod POD` says which image, and how fast it came.",),
        ("Raise `learners.timeouts.pull`, or bring the image to the nodes before.",),
    ),
    "ImageRefused": Advice(
        ("The message has the kubelet's words.",),
        ("Correct the image's name in the template, or its `imagePullSecrets`.",),
    ),
    "WaitingForSyncer": Advice(
        (_LOG, "`kubectl diloco doctor JOB` tries whether the syncer can be reached from a pod."),
        (
            "Wait until the program has called `join`: imports and a model that is loaded take their time.",
            "Network policies must let learners reach the syncer's port 7077.",
        ),
    ),
    "JoinTimeout": Advice(
        (_LOG, "`kubectl diloco doctor JOB` tries whether the syncer can be reached from a pod."),
        (
            "Open the session early in the program, or raise `learners.timeouts.join`.",
            "Network policies must let learners reach the syncer's port 7077.",
        ),
    ),
    "TakingParameters": Advice(
        ("`kubectl diloco status JOB` shows the bytes of the model and the unit's link.",),
        (_WAIT,),
    ),
    "FirstStep": Advice((_LOG,), ("Wait: the program compiles. `learners.timeouts.firstStep` bounds it.",)),
    "Seeding": Advice(("The first learner hands over the initial parameters.",), (_WAIT,)),
    # --- a unit that trains, or stands ---
    "WaitingForQuorum": Advice(
        ("The condition `Training` says which learners are missing.",),
        ("See why they are missing, or lower `training.quorum`. The unit is ahead of the job and rests; this is no stall.",),
    ),
    "Paused": Advice(("The unit's message has the program's words, and `pausedUntil`.",), (_WAIT,)),
    "GaveWay": Advice(
        ("The message names the job that takes the slice.",),
        ("Raise this job's `learners.min` or priority, lower the other's `learners.max`, or add nodes.",),
    ),
    # --- a unit that ended ---
    "Crashed": Advice(
        (_LOG,),
        ("Mend the program. After `learners.restart.limit` failures within the window the unit is given up; the others train on.",),
    ),
    "FailedAtEnd": Advice(
        (_LOG,),
        ("The model is whole: `kubectl diloco export JOB`. Mend what the program does once its loop has ended.",),
    ),
    "StoppedAtEnd": Advice(
        (_LOG,),
        ("Leave the training loop when it ends, and write within 30 s of the end of the job; the model is in the last snapshot.",),
    ),
    "LeftEarly": Advice(
        (_LOG,),
        ("Let the program train until `session.batches` ends, or end the job for all units with `session.finish`.",),
    ),
    "OutOfMemory": Advice(
        (_LOG, "`kubectl describe pod POD` shows the limit."),
        ("Raise the memory of the pool's template, or lower the batch. Data loaders' workers count, and so does /dev/shm.",),
    ),
    "OutOfStorage": Advice(
        ("The message names the volume or the limit.", _LOG),
        ("Raise `sizeLimit` of the volume or the limit of ephemeral-storage, or let the program write less.",),
    ),
    "OperatorDefect": Advice(
        (
            "The Event says what happened to the unit and in which state it was, or that the job cannot be reconciled or gets no hardware.",
            "The operator's log has the stack.",
        ),
        (
            "Report it with that text. A unit starts again after `learners.restart.backoff.max`; the others train on.",
            "While a job cannot be reconciled, its units train on, but none that fails is replaced, and its status stays as it was.",
            "While hardware cannot be allotted to a job, its units train on where they are, and those that wait go on waiting.",
        ),
    ),
    "PodLost": Advice(
        ("`kubectl get events` around that time: a user or a controller deleted the pod.",),
        ("Nothing, if it was on purpose: the unit starts again, and this is no failure.",),
    ),
    "Disrupted": Advice(("The message says who took the pod away.",), ("Nothing: the unit starts again, and this is no failure.",)),
    "NodeLost": Advice(
        (_NODE,),
        (
            "Nothing for the job: the unit starts elsewhere.",
            "A machine that is off for good: `kubectl delete node NODE`, so that its pods go.",
        ),
    ),
    "Stalled": Advice(
        ("The message says whether it took no step, or was not heard from.", _LOG),
        ("Announce long pauses with `session.paused`, or raise `learners.stallTimeout`.",),
    ),
    "RefusedLayout": Advice(
        ("The unit's log lists the parameters that differ.",),
        ("Use the same model configuration in every pool's template, and `canonical=` for another framework. A restart does not help.",),
    ),
    "RefusedNonFinite": Advice(
        (_LOG,),
        ("Lower the inner learning rate, clip gradients, check the data. The unit starts again from the job's parameters.",),
    ),
    "RefusedQuarantined": Advice(
        ("The message, and `status.units[].refused`.", "The accelerators of its host."),
        ("Check its data, learning rate and the `tokens` that it passes to `step`. It starts again within its restart budget.",),
    ),
    "RankLost": Advice(
        ("The message names the rank: read the log of its pod.",),
        ("Mend what ended that rank. The unit starts again as a whole; its node is on record in `status.hosts`.",),
    ),
    "RefusedIdentity": Advice(
        ("The message says whether a newer attempt exists, another process has the identity, or the certificate was refused.",),
        ("Do not start a learner's pod by hand. Clocks of nodes that differ by minutes make certificates invalid.",),
    ),
    "BadContract": Advice(
        (_LOG,),
        ("Start the program as the pod's command, and leave the variables `DILOCO_*` and the mount of the job as they are.",),
    ),
    "HostAvoided": Advice(
        ("`status.hosts[]` says which attempts failed there, and until when it is avoided.", _NODE),
        (
            "Check GPUs, disk and network of the node; cordon or replace it. A node that is replaced starts clean.",
            "Else nothing: units start on others for 10 minutes, then for twice as long each time.",
        ),
    ),
    # --- Training and Degraded ---
    "WaitingForHardware": Advice((_EXPLAIN,), ("As for InsufficientCapacity; or lower `training.quorum`.",)),
    "QuorumMissing": Advice((_EXPLAIN,), ("Mend the units that are missing, or lower `training.quorum`.",)),
    "SyncerStarting": Advice(
        (f"`kubectl describe pod {_SYNCER}` says what it waits for.",),
        ("Wait; if it stays, follow the pod's events: image, volume or resources.",),
    ),
    "SyncerUnavailable": Advice(
        (f"`kubectl describe pod {_SYNCER}`, and its node.", "`kubectl diloco logs JOB syncer`"),
        (
            "Most often nothing: the syncer comes back with no merge lost. Learners train on for some seconds, and then wait for it.",
            "A syncer that is killed for its memory: raise its request and limit in `spec.syncer.template`.",
            (
                "A node that is off for good: `kubectl delete node NODE`, or taint it "
                "`node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`."
            ),
        ),
    ),
    "SyncerUnreachable": Advice(
        ("Whether the operator's pod reaches the syncer's: network policies, a service mesh, DNS.", "`kubectl diloco doctor JOB`"),
        ("Allow the operator's namespace to reach port 7077 of the syncer. Training may go on meanwhile.",),
    ),
    "ReportsRefused": Advice(
        ("The message says what is wrong with the reports.",),
        ("Use the syncer's image of the operator's own version, and no program of your own in `spec.syncer`.",),
    ),
    "VolumePending": Advice(
        ("`kubectl describe pvc` says why the claim is not bound.", "`kubectl diloco doctor JOB` checks the StorageClass."),
        ("Name a class in `syncer.storage.className`, or set the chart's `storageClassName`; or mark one as the cluster's default.",),
    ),
    "HomeUnknown": Advice(
        ("The message says what the part lacks of its job at home: its Secret, a file in it, or the same `spec.training`.",),
        (
            (
                "A part by hand: at home run `kubectl diloco part JOB --cluster NAME` with the part's `--pool`, and in the part's cluster "
                "`kubectl apply --server-side -f FOLDER`."
            ),
            (
                f"A part that the operator at home made has the label `{LABEL_HOME}`. That operator writes it again within 5 minutes; "
                "where the message says so, delete the Secret first. If nothing changes, see `status.parts` of the job at home, and that "
                "operator's log."
            ),
        ),
    ),
    "NameTaken": Advice(
        ("The message names the object.",),
        (
            "Give the job another name, or delete the object if nothing needs it.",
            "A volume claim holds a model. The message says how the job goes on from it.",
        ),
    ),
    "WriteRefused": Advice(
        ("The message has the API server's words.", "`kubectl diloco doctor JOB` checks quota, policies and rights."),
        ("Raise the quota, change the policy, or give the operator the right.",),
    ),
    "LearnersMissing": Advice((_EXPLAIN,), ("Follow the reason of each unit that is missing.",)),
    "LearnersFailed": Advice((_LOG,), ("Mend the program or its data; the units start again by themselves within their restart budget.",)),
    "LearnersLost": Advice(
        ("The message has the cause.", _LOG),
        ("Mend it, then `kubectl diloco retry JOB`. A changed template of the pool starts its units again, too.",),
    ),
    "LearnersUnplaced": Advice((_EXPLAIN,), ("As for InsufficientCapacity. The units that have hardware train on.",)),
    "RollOutStopped": Advice(
        ("The message says what keeps the new template from training.", _LOG),
        (
            "Correct the template, or take the change back: the unit starts again at once, and the roll-out goes on.",
            "Where a quota has no room for both templates at once: raise it, or suspend and resume the job.",
        ),
    ),
    "SnapshotFailed": Advice(
        ("`kubectl diloco logs JOB syncer` has the error.", "`kubectl describe pvc` shows the size."),
        (
            (
                "[Make the claim larger](../guide/troubleshooting.md#a-full-volume), or mend the object store or the rights on it. "
                "Training goes on, and a later snapshot succeeds by itself."
            ),
        ),
    ),
    "VolumeDeleted": Advice(
        ("`kubectl get pvc` shows the claim as Terminating.",),
        ("Let the job complete, or export the model: `kubectl diloco export JOB`. Do not suspend the job.",),
    ),
    "NothingTrained": Advice(
        ("`status.units[].refused`, and the reasons in the syncer's log.",),
        ("Correct the program, and give the job more steps than its `syncInterval`.",),
    ),
    "ProgramsFailed": Advice(
        (_LOG, "`status.units[].message` has how each ended."),
        ("The model is whole. Mend what the program does after its loop, and take what it should have written from an export.",),
    ),
    "WorkRefused": Advice(
        ("`status.units[].refused`, and the reasons in the syncer's log.",),
        ("Correct what the units send: tokens, learning rate, values that are not finite.",),
    ),
    # --- Failed ---
    "RestartsExhausted": Advice(
        (_LOG,), ("Mend what the units failed by: [a failed job](../guide/troubleshooting.md#a-failed-job).", _RETRY)
    ),
    "LayoutRefused": Advice(
        ("The unit's log lists the parameters that differ, or the samples.",),
        ("Use one model configuration in all templates, and the same samples, seed and number of shards.", _RETRY),
    ),
    "SyncerFailed": Advice(("`kubectl diloco logs JOB syncer`",), ("Mend what it says.", _RETRY)),
    "StateUnusable": Advice(
        ("The message says which state, and why; nothing was overwritten.",),
        ("Repair or restore the volume. For another model use another job's name.", _RETRY),
    ),
    "StartUnusable": Advice(
        (
            "The message says what is wrong with `spec.startFrom.uri`, or with what is there.",
            "`diloco snapshots URI` lists the snapshots there, with the credentials of your machine.",
        ),
        (
            "Correct `spec.startFrom.uri`, or what is there, or the rights of the syncer's pod on the bucket or volume.",
            "A changed `startFrom` goes with a higher `spec.retry` in the same `kubectl apply`.",
            _RETRY,
        ),
    ),
    # --- Events ---
    "UnitGaveSliceUp": Advice((_EXPLAIN,), ("Nothing; it tries again. This is no failure.",)),
    "UnitLost": Advice(("The message says what took it.",), ("Nothing: the unit starts again.",)),
    "UnitCrashed": Advice((_LOG,), ("As for Crashed.",)),
    "UnitFailed": Advice((_LOG,), ("Mend the cause, then `kubectl diloco retry JOB`.",)),
    "OwnData": Advice(
        ("Several units feed themselves, and nothing keeps them from the same samples.",),
        ("Let each read its own part by `DILOCO_UNIT`, or use `session.numbers` or `session.shards`. If they do, nothing.",),
    ),
    "PartsLeft": Advice(
        ("The message names the clusters.",),
        ("Delete the DiLoCoJob and its Secret there once the cluster is back. It gives its hardware back by itself after a while.",),
    ),
    "MalformedObject": Advice(("The message names the object and the field.",), ("Correct or delete the object.",)),
}


_LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")


def next_step(reason: str, job: str) -> str:
    """The first thing to do, as plain text, also for reasons of another release. `job` replaces JOB in commands, such as `lm -n team`."""
    advice = RUNBOOK.get(reason)
    if advice is None:
        return "do what the message says"
    return re.sub(r"\bJOB\b", job, _LINK.sub(r"\1", advice.act[0]).replace("`", ""))


def url_of(reason: str) -> str:
    """URL of the reason's page, or "" if it has none."""
    return f"{URL}/{reason}.md" if reason in RUNBOOK else ""
