"""DiLoCoJobs that an API server refuses by the CRD alone, and some at the edge that it takes."""

from __future__ import annotations

from typing import Any

from builders.jobs import Obj, a_manifest, cpu_pool, gpu_pool, template, tpu_pool, with_field
from diloco_operator.accelerators import CATALOGUE, Family
from diloco_operator.api.rules import MAX_ACCELERATORS_PER_HOST

OTHER_BALANCER = {"syncer": {"loadBalancer": {"class": "internal"}}}
AT_HOME = {"address": "syncer.example.com:7077", "secretName": "lm-home"}
REACHED = {"syncer": {"externalAddress": "syncer.example.com"}}
SEVERAL_SHARDS = a_manifest(spec={"syncer": {"shards": 2}})


def a_part(name: str, pool: str) -> Obj:
    return {"name": name, "pools": [{"name": pool, "units": 1}]}


REFUSED: dict[str, tuple[Obj, str, str]] = {
    # how many
    "min above max": (a_manifest(min=7), "spec.learners.min", "learners.min must not exceed learners.max; lower min or raise max"),
    "no learners": (a_manifest(min=0), "spec.learners.min", "must be greater than or equal to 1"),
    "negative maximum": (a_manifest(max=-1), "spec.learners.max", "must be greater than or equal to 1"),
    "too many learners": (a_manifest(max=257), "spec.learners.max", "must be less than or equal to 256"),
    "no maximum": (with_field(a_manifest(), "spec.learners", {"min": 1}), "spec.learners.max", "Required value"),
    "learners as text": (with_field(a_manifest(), "spec.learners.max", "six"), "spec.learners.max", "must be of type integer"),
    "half a learner": (with_field(a_manifest(), "spec.learners.max", 2.5), "spec.learners.max", "must be of type integer"),
    "sum of pool minima above max": (a_manifest(pools=[tpu_pool(min=4), gpu_pool(min=3)]), "spec.pools", "the sum of pools[].learners.min"),
    "pools too small for the minimum": (a_manifest(pools=[tpu_pool(max=1)]), "spec.pools", "the sum of pools[].learners.max must reach"),
    "pool min above max": (
        a_manifest(pools=[tpu_pool(min=5)]),
        "spec.pools[0].learners.min",
        "min must not exceed max of the pool's learners",
    ),
    "pool with fewer than no learners": (a_manifest(pools=[tpu_pool(max=-1)]), "spec.pools[0].learners.max", "greater than or equal to 0"),
    "minimum of a pool that is switched off": (
        a_manifest(pools=[tpu_pool(min=1, max=0), gpu_pool()]),
        "spec.pools[0].learners.min",
        "min must not exceed max of the pool's learners",
    ),
    "every pool switched off": (
        a_manifest(pools=[tpu_pool(max=0), gpu_pool(max=0)]),
        "spec.pools",
        "the sum of pools[].learners.max must reach",
    ),
    # names
    "job name too long": (a_manifest("a" * 33), "metadata.name", "at most 32 characters"),
    "job name not a label": (a_manifest("bytes.lm"), "metadata.name", "must be a DNS label"),
    "job name in another script": (a_manifest("\u4e16\u754c"), "metadata.name", "must be a DNS label"),
    "pool name in another script": (a_manifest(pools=[tpu_pool("\u00e9t\u00e9")]), "spec.pools[0].name", "must be a DNS label"),
    "pool name of nothing": (a_manifest(pools=[tpu_pool("")]), "spec.pools[0].name", "must be a DNS label"),
    "pool name too long": (a_manifest(pools=[tpu_pool("sixteen-letters-")]), "spec.pools[0].name", "at most 15 characters"),
    "pool name with capitals": (a_manifest(pools=[tpu_pool("V5P")]), "spec.pools[0].name", "must be a DNS label"),
    "duplicate pool names": (a_manifest(pools=[tpu_pool("a"), gpu_pool("a")]), "spec.pools", "pool names must be unique"),
    # hardware
    "no pools": (a_manifest(pools=[]), "spec.pools", "must have at least 1 items"),
    "too many pools": (a_manifest(pools=[tpu_pool(f"p{n}") for n in range(17)]), "spec.pools", "must have at most 16 items"),
    "accelerator that is no name": (
        a_manifest(pools=[gpu_pool(accelerator="NVIDIA H100")]),
        "spec.pools[0].accelerator",
        "must match",
    ),
    "3-D topology of a 2-D TPU": (
        a_manifest(pools=[tpu_pool("a", "tpu-v6e", "2x2x2")]),
        "spec.pools[0].topology",
        "one that tpu-v6e has: 1x1, 2x2",
    ),
    "2-D topology of a 3-D TPU": (
        a_manifest(pools=[tpu_pool("a", "tpu-v5p", "4x4")]),
        "spec.pools[0].topology",
        "one that tpu-v5p has: 2x2x1",
    ),
    "topology out of order": (a_manifest(pools=[tpu_pool("a", "tpu-v4", "8x4x4")]), "spec.pools[0].topology", "one that tpu-v4 has"),
    "topology larger than the pod": (a_manifest(pools=[tpu_pool("a", "tpu-v4", "16x16x20")]), "spec.pools[0].topology", "at most 16x16x16"),
    "TPU without topology": (with_field(a_manifest(), "spec.pools[0].topology", ...), "spec.pools[0].topology", "one that tpu-v5p has"),
    "topology that v5e has not": (a_manifest(pools=[tpu_pool("a", "tpu-v5e", "2x2x1")]), "spec.pools[0].topology", "one that tpu-v5e has"),
    "topology that tpu7x has not": (a_manifest(pools=[tpu_pool("a", "tpu7x", "2x2")]), "spec.pools[0].topology", "one that tpu7x has"),
    "topology with a GPU": (a_manifest(pools=[gpu_pool(topology="2x2")]), "spec.pools[0].topology", "topology is for TPUs only"),
    "hosts with a TPU": (a_manifest(pools=[tpu_pool(hosts=2)]), "spec.pools[0].hosts", "follow from its topology, so remove it"),
    "acceleratorsPerHost with a TPU": (
        a_manifest(pools=[tpu_pool(acceleratorsPerHost=4)]),
        "spec.pools[0].acceleratorsPerHost",
        "accelerators of single hosts",
    ),
    "acceleratorsPerHost with cpu": (
        a_manifest(pools=[cpu_pool(acceleratorsPerHost=1)]),
        "spec.pools[0].acceleratorsPerHost",
        "cpu has none",
    ),
    "shared memory that is no quantity": (
        a_manifest(pools=[gpu_pool(sharedMemory="16GB")]),
        "spec.pools[0].sharedMemory",
        "such as 500Mi or 16Gi",
    ),
    "processesPerHost with a TPU": (
        a_manifest(pools=[tpu_pool(processesPerHost=4)]),
        "spec.pools[0].processesPerHost",
        "one process has all chips of its host",
    ),
    "processes that share the GPUs of a host unevenly": (
        a_manifest(pools=[gpu_pool(acceleratorsPerHost=4, processesPerHost=3)]),
        "spec.pools[0].processesPerHost",
        "must divide acceleratorsPerHost",
    ),
    "more processes than a whole host has GPUs": (
        a_manifest(pools=[gpu_pool(processesPerHost=16)]),
        "spec.pools[0].processesPerHost",
        "must divide acceleratorsPerHost",
    ),
    "more processes than any host takes": (
        a_manifest(pools=[cpu_pool(processesPerHost=65)]),
        "spec.pools[0].processesPerHost",
        "64",
    ),
    "more GPUs than a host has": (
        a_manifest(pools=[gpu_pool(acceleratorsPerHost=16)]),
        "spec.pools[0].acceleratorsPerHost",
        "must be at most 8",
    ),
    "more GB200 than a host has": (
        a_manifest(pools=[gpu_pool(accelerator="nvidia-gb200", acceleratorsPerHost=8)]),
        "spec.pools[0].acceleratorsPerHost",
        "must be at most 4",
    ),
    **{
        f"one {kind.name} more than a host has": (
            a_manifest(pools=[gpu_pool(accelerator=kind.name, acceleratorsPerHost=kind.host_sizes[-1] + 1)]),
            "spec.pools[0].acceleratorsPerHost",
            f"must be at most {kind.host_sizes[-1]}",
        )
        for kind in CATALOGUE.values()
        if kind.family is Family.HOST and kind.host_sizes[-1] < MAX_ACCELERATORS_PER_HOST
    },
    "chipsPerHost with a GPU": (
        a_manifest(pools=[gpu_pool(chipsPerHost=4)]),
        "spec.pools[0].chipsPerHost",
        "chipsPerHost is for TPUs only",
    ),
    "ambiguous v6e 2x4": (a_manifest(pools=[tpu_pool("a", "tpu-v6e", "2x4")]), "spec.pools[0].chipsPerHost", "set it to 4 or 8"),
    "chipsPerHost that no host has": (
        a_manifest(pools=[tpu_pool("a", "tpu-v6e", "4x4", chipsPerHost=8)]),
        "spec.pools[0].chipsPerHost",
        "4 or 8 for 2x4, else 4",
    ),
    "no hosts": (a_manifest(pools=[gpu_pool(hosts=0)]), "spec.pools[0].hosts", "must be greater than or equal to 1"),
    "unknown capacity": (
        a_manifest(pools=[gpu_pool(capacity="Free")]),
        "spec.pools[0].capacity",
        '"Reserved", "OnDemand", "Spot", "FlexStart", "Scavenged"',
    ),
    # templates
    "no learner container": (
        a_manifest(pools=[tpu_pool(template=template("main"))]),
        "spec.pools[0].template.spec.containers",
        'one container named "learner"',
    ),
    "empty template": (
        a_manifest(pools=[tpu_pool(template={})]),
        "spec.pools[0].template.spec.containers",
        'one container named "learner"',
    ),
    "no template": (with_field(a_manifest(), "spec.pools[0].template", ...), "spec.pools[0].template", "Required value"),
    "container without a name": (
        with_field(a_manifest(), "spec.pools[1].template.spec.containers[0].name", ...),
        "spec.pools[1].template.spec.containers[0].name",
        "Required value",
    ),
    "syncer template with other containers": (
        a_manifest(spec={"syncer": {"template": template("main")}}),
        "spec.syncer.template.spec.containers",
        'one container named "syncer"',
    ),
    # training
    "no steps": (with_field(a_manifest(), "spec.training", {}), "spec.training.steps", "Required value"),
    "no training": (with_field(a_manifest(), "spec.training", ...), "spec.training", "Required value"),
    "zero steps": (a_manifest(steps=0), "spec.training.steps", "must be greater than or equal to 1"),
    "quorum above learners.min": (a_manifest(quorum=3), "spec.training.quorum", "training.quorum must not exceed learners.min"),
    "fragments above syncInterval": (a_manifest(fragments=25), "spec.training.fragments", "fragments must not exceed syncInterval"),
    "overlap of a whole interval": (
        a_manifest(overlapSteps=24),
        "spec.training.overlapSteps",
        "overlapSteps must be less than syncInterval",
    ),
    "unknown merge": (a_manifest(merge={"method": "Other"}), "spec.training.merge.method", 'supported values: "RDA", "Average"'),
    "unknown compression": (a_manifest(compression="Int2"), "spec.training.compression", 'supported values: "None", "BFloat16", "Int4"'),
    "momentum of one": (a_manifest(outerOptimizer={"momentum": 1}), "spec.training.outerOptimizer.momentum", "must be less than 1"),
    "learning rate of zero": (
        a_manifest(outerOptimizer={"learningRate": 0}),
        "spec.training.outerOptimizer.learningRate",
        "must be greater than 0",
    ),
    "safety factor above one": (
        a_manifest(grace={"safetyFactor": 1.2}),
        "spec.training.grace.safetyFactor",
        "must be less than or equal to 1",
    ),
    "no snapshots kept": (a_manifest(checkpoint={"keep": 0}), "spec.training.checkpoint.keep", "must be greater than or equal to 1"),
    "uri without a scheme": (a_manifest(checkpoint={"uri": "/mnt/x"}), "spec.training.checkpoint.uri", "such as s3://bucket/folder"),
    # time-outs and restarts
    "malformed time to join": (
        with_field(a_manifest(), "spec.learners.timeouts", {"join": "10 minutes"}),
        "spec.learners.timeouts.join",
        "join must be a duration",
    ),
    "malformed time to schedule": (
        with_field(a_manifest(), "spec.learners.timeouts", {"schedule": "soon"}),
        "spec.learners.timeouts.schedule",
        "schedule must be a duration",
    ),
    "no time to schedule": (
        with_field(a_manifest(), "spec.learners.timeouts", {"schedule": "0s"}),
        "spec.learners.timeouts.schedule",
        "schedule must be at least 1s",
    ),
    "no time to pull": (
        with_field(a_manifest(), "spec.learners.timeouts", {"pull": "999ms"}),
        "spec.learners.timeouts.pull",
        "pull must be at least 1s",
    ),
    "no time to start": (
        with_field(a_manifest(), "spec.learners.timeouts", {"start": "0m"}),
        "spec.learners.timeouts.start",
        "start must be at least 1s",
    ),
    "no time to join": (
        with_field(a_manifest(), "spec.learners.timeouts", {"join": "1ms"}),
        "spec.learners.timeouts.join",
        "join must be at least 1s",
    ),
    "stallTimeout as a number": (
        with_field(a_manifest(), "spec.learners.stallTimeout", 600),
        "spec.learners.stallTimeout",
        "must be of type string",
    ),
    "firstStep of nothing": (
        with_field(a_manifest(), "spec.learners.timeouts", {"firstStep": "0s"}),
        "spec.learners.timeouts.firstStep",
        "firstStep must be at least 1s",
    ),
    "stallTimeout of nothing": (
        with_field(a_manifest(), "spec.learners.stallTimeout", "0s"),
        "spec.learners.stallTimeout",
        "must be at least 1s",
    ),
    "horizon of nothing": (
        with_field(a_manifest(), "spec.placement", {"horizon": "0s"}),
        "spec.placement.horizon",
        "horizon must be at least 1s",
    ),
    "malformed horizon": (
        with_field(a_manifest(), "spec.placement", {"horizon": "1d"}),
        "spec.placement.horizon",
        "horizon must be a duration",
    ),
    "an objective that there is not": (
        with_field(a_manifest(), "spec.placement", {"objective": "Fairness"}),
        "spec.placement.objective",
        "Preference",
    ),
    "less than no unit on the way": (
        with_field(a_manifest(), "spec.placement", {"maxMoving": -1}),
        "spec.placement.maxMoving",
        "greater than or equal to 0",
    ),
    "provisioning time-out of nothing": (
        with_field(a_manifest(), "spec.pools[0].provisioning", {"mode": "Autoscaler", "timeout": "1ms"}),
        "spec.pools[0].provisioning.timeout",
        "timeout must be at least 1s",
    ),
    "nodes by request, which Kueue asks for": (
        with_field(a_manifest(), "spec.pools[0].provisioning", {"mode": "ProvisioningRequest"}),
        "spec.pools[0].provisioning.mode",
        'supported values: "Existing", "Autoscaler"',
    ),
    "nodes for what is left over": (
        with_field(with_field(a_manifest(), "spec.pools[0].provisioning", {"mode": "Autoscaler"}), "spec.pools[0].capacity", "Scavenged"),
        "spec.pools[0].provisioning.mode",
        "provisioning.mode must be Existing where capacity is Scavenged",
    ),
    "spares of what is left over": (
        with_field(with_field(a_manifest(), "spec.pools[0].spares", 1), "spec.pools[0].capacity", "Scavenged"),
        "spec.pools[0].spares",
        "a capacity other than Scavenged",
    ),
    "spares that an autoscaler brings": (
        with_field(with_field(a_manifest(), "spec.pools[0].spares", 1), "spec.pools[0].provisioning", {"mode": "Autoscaler"}),
        "spec.pools[0].spares",
        "it needs provisioning.mode Existing",
    ),
    "fewer than no spares": (with_field(a_manifest(), "spec.pools[0].spares", -1), "spec.pools[0].spares", "greater than or equal to 0"),
    "more failures than a status holds": (
        with_field(a_manifest(max=64), "spec.learners.restart.limit", 157),
        "spec.learners.restart.limit",
        "learners.restart.limit times learners.max must not exceed 10000",
    ),
    "malformed window": (with_field(a_manifest(), "spec.learners.restart.window", "1d"), "spec.learners.restart.window", "ms, s, m or h"),
    "malformed stallTimeout": (
        with_field(a_manifest(), "spec.learners.stallTimeout", "2"),
        "spec.learners.stallTimeout",
        "stallTimeout must be a duration",
    ),
    "window of nothing": (
        with_field(a_manifest(), "spec.learners.restart.window", "1ms"),
        "spec.learners.restart.window",
        "window must be at least 1s",
    ),
    "malformed initial back-off": (
        with_field(a_manifest(), "spec.learners.restart.backoff.initial", "-5s"),
        "spec.learners.restart.backoff.initial",
        "initial must be a duration",
    ),
    "malformed longest back-off": (
        with_field(a_manifest(), "spec.learners.restart.backoff.max", "5 m"),
        "spec.learners.restart.backoff.max",
        "max must be a duration",
    ),
    "backoff shrinks": (
        with_field(a_manifest(), "spec.learners.restart.backoff", {"initial": "10m", "max": "5m"}),
        "spec.learners.restart.backoff.initial",
        "backoff.initial must not exceed backoff.max",
    ),
    "negative restarts": (
        with_field(a_manifest(), "spec.learners.restart.limit", -1),
        "spec.learners.restart.limit",
        "greater than or equal to 0",
    ),
    "negative ttl": (
        a_manifest(spec={"ttlSecondsAfterFinished": -1}),
        "spec.ttlSecondsAfterFinished",
        "must be greater than or equal to 0",
    ),
    # syncer
    "several shards": (SEVERAL_SHARDS, "spec.syncer.shards", "shards above 1 is not supported yet"),
    "external address that is a URL": (
        a_manifest(spec={"syncer": {"externalAddress": "https://syncer.example.com"}}),
        "spec.syncer.externalAddress",
        "syncer.example.com, 203.0.113.7:7077 or [2001:db8::7]:7077",
    ),
    "external address with a port that does not exist": (
        a_manifest(spec={"syncer": {"externalAddress": "syncer.example.com:70777"}}),
        "spec.syncer.externalAddress",
        "externalAddress must be a host name or an IP address",
    ),
    "outside learner with the name of a unit": (
        with_field(a_manifest(), "spec.learners.outside", ["v5p-0"]),
        "spec.learners.outside",
        "names that end with a number are those of pools' units",
    ),
    "two outside learners of one name": (
        with_field(a_manifest(), "spec.learners.outside", ["lab", "lab"]),
        "spec.learners.outside",
        "names of learners.outside must be unique",
    ),
    "two parts with a pool of one name": (
        a_manifest(spec={"parts": [a_part("tokyo", "far"), a_part("osaka", "far")]}),
        "spec.parts",
        "a pool is in one cluster: no two parts, and no part and spec.pools, may have a pool of the same name",
    ),
    "part with a pool of home": (
        a_manifest(spec={"parts": [a_part("tokyo", "v5p")]}),
        "spec.parts",
        "a pool is in one cluster",
    ),
    "too many parts by hand beside a pool in another cluster": (
        a_manifest(
            pools=[tpu_pool(max=1), tpu_pool("near", cluster="kobe", max=1)],
            spec={"parts": [a_part(f"tokyo-{n}", f"far-{n}") for n in range(16)], "syncer": {"externalAddress": "192.0.2.7:7077"}},
        ),
        "spec.parts",
        "a job has at most 16 parts: spec.parts and the pools with a cluster together",
    ),
    "two parts of one name": (
        a_manifest(spec={"parts": [a_part("tokyo", "far"), a_part("tokyo", "near")]}),
        "spec.parts",
        "names of parts must be unique: each is a cluster",
    ),
    "part with too many units": (
        a_manifest(spec={"parts": [{"name": "tokyo", "pools": [{"name": "far", "units": 20}, {"name": "near", "units": 13}]}]}),
        "spec.parts[0].pools",
        "the pools of a part have at most 32 units",
    ),
    "part whose name is no label": (a_manifest(spec={"parts": [a_part("Tokyo", "far")]}), "spec.parts[0].name", "must be a DNS label"),
    "part that has parts": (
        a_manifest(spec={"syncer": {"at": AT_HOME}, "parts": [a_part("tokyo", "far")]}),
        "spec.syncer.at",
        "a job with syncer.at is a part of the job at home, where parts, learners.outside and startFrom are said; remove them here",
    ),
    "part with a syncer of its own": (
        a_manifest(spec={"syncer": {"at": AT_HOME, "externalAddress": "syncer.example.com"}}),
        "spec.syncer.at",
        "with syncer.at no syncer runs in this cluster",
    ),
    "part at no address": (
        a_manifest(spec={"syncer": {"at": {**AT_HOME, "address": "https://syncer.example.com"}}}),
        "spec.syncer.at.address",
        "address must be a host name or an IP address",
    ),
    "pool of another cluster in a part": (
        a_manifest(pools=[tpu_pool(cluster="tokyo")], spec={"syncer": {"at": AT_HOME}}),
        "spec.pools",
        "pools[].cluster is for the job at home",
    ),
    "pool of another cluster that cannot reach the syncer": (
        a_manifest(pools=[tpu_pool(), gpu_pool(cluster="tokyo")]),
        "spec.syncer",
        "set syncer.externalAddress or syncer.loadBalancer",
    ),
    "pool of another cluster with an empty address of the syncer": (
        a_manifest(pools=[tpu_pool(), gpu_pool(cluster="tokyo")], spec={"syncer": {"externalAddress": ""}}),
        "spec.syncer",
        "set syncer.externalAddress or syncer.loadBalancer",
    ),
    "pool in a cluster that is no label": (
        a_manifest(pools=[tpu_pool(cluster="Tokyo")], spec=REACHED),
        "spec.pools[0].cluster",
        "cluster must be a DNS label",
    ),
    "too many units in one cluster": (
        a_manifest(max=40, pools=[tpu_pool(cluster="tokyo", max=20), gpu_pool(cluster="tokyo", max=13)], spec=REACHED),
        "spec.pools",
        "the pools of one cluster have at most 32 units together",
    ),
    "part by hand in a cluster of the operator": (
        a_manifest(pools=[tpu_pool(cluster="tokyo")], spec={**REACHED, "parts": [a_part("tokyo", "far")]}),
        "spec.parts",
        "a part in spec.parts is made by hand",
    ),
    "part that never waits": (
        a_manifest(spec={"syncer": {"at": {**AT_HOME, "partTimeout": "0s"}}}),
        "spec.syncer.at.partTimeout",
        "partTimeout must be at least 1s",
    ),
    "part that waits for no duration": (
        a_manifest(spec={"syncer": {"at": {**AT_HOME, "partTimeout": "soon"}}}),
        "spec.syncer.at.partTimeout",
        "partTimeout must be a duration",
    ),
    "learners that store their states nowhere": (
        with_field(a_manifest(), "spec.training.checkpoint", {"learners": "Always"}),
        "spec.training.checkpoint.uri",
        "learners: Always needs a uri: learners store their states below it. Give s3://bucket/folder, or file:///path",
    ),
    "snapshots in a relative folder": (
        with_field(a_manifest(), "spec.training.checkpoint", {"uri": "file://mnt/snapshots"}),
        "spec.training.checkpoint.uri",
        "such as s3://bucket/folder or file:///mnt/snapshots",
    ),
    "storage that is no quantity": (
        a_manifest(spec={"syncer": {"storage": {"size": "10GB"}}}),
        "spec.syncer.storage.size",
        "such as 500Mi or 10Gi",
    ),
    "storage of nothing": (
        a_manifest(spec={"syncer": {"storage": {"size": "0Gi"}}}),
        "spec.syncer.storage.size",
        "positive Kubernetes quantity",
    ),
    "storage of no part of a gibibyte": (
        a_manifest(spec={"syncer": {"storage": {"size": "0.000Gi"}}}),
        "spec.syncer.storage.size",
        "positive Kubernetes quantity",
    ),
    "suspend as text": (a_manifest(spec={"suspend": "yes"}), "spec.suspend", "must be of type boolean"),
    "queue that is no name": (a_manifest(spec={"queueName": "Team_A"}), "spec.queueName", "kubectl get localqueues lists them"),
    "queue with a long name": (a_manifest(spec={"queueName": "q" * 64}), "spec.queueName", "must have at most 63 characters"),
    "spares in a queue": (
        a_manifest(spec={"queueName": "team-a"}, pools=[tpu_pool(spares=1)]),
        "spec.pools",
        "pools[].spares is not for a job with queueName",
    ),
    "a start without a scheme": (
        a_manifest(spec={"startFrom": {"uri": "models/base"}}),
        "spec.startFrom.uri",
        "startFrom.uri must have a scheme and a path",
    ),
    "a start from a relative file": (
        a_manifest(spec={"startFrom": {"uri": "file://models/base"}}),
        "spec.startFrom.uri",
        "startFrom.uri must have a scheme and a path",
    ),
    "a start from nowhere": (a_manifest(spec={"startFrom": {}}), "spec.startFrom.uri", "Required value"),
    "empty managedBy": (a_manifest(spec={"managedBy": ""}), "spec.managedBy", "must have at least 1 characters"),
    "no spec": (with_field(a_manifest(), "spec", ...), "spec", "Required value"),
}
"""A job, the field that is to blame, and words of the refusal."""

ACCEPTED: dict[str, Obj] = {
    "job with parts": a_manifest(spec={"parts": [a_part("tokyo", "far"), a_part("osaka", "near")]}),
    "pools in three clusters": a_manifest(pools=[tpu_pool(), tpu_pool("a", cluster="tokyo"), gpu_pool("b", cluster="osaka")], spec=REACHED),
    "pools of this cluster, with the empty field that clients write": a_manifest(
        max=40, pools=[tpu_pool(cluster="", max=20), gpu_pool(cluster="", max=20)]
    ),
    "part whose pools have the empty field": a_manifest(pools=[tpu_pool(cluster="")], spec={"syncer": {"at": AT_HOME}}),
    "part whose quorum is of the whole job": a_manifest(min=1, quorum=5, spec={"syncer": {"at": AT_HOME}}),
    "a pool that is switched off": a_manifest(pools=[tpu_pool(max=0), gpu_pool()]),
    "two kinds of hardware": a_manifest(),
    "every TPU topology of one host": a_manifest(
        pools=[
            tpu_pool("v4", "tpu-v4", "2x2x1"),
            tpu_pool("v5e", "tpu-v5e", "1x1"),
            tpu_pool("v6e-one", "tpu-v6e", "2x4", chipsPerHost=8),
            tpu_pool("v6e-two", "tpu-v6e", "2x4", chipsPerHost=4),
            tpu_pool("tpu7x", "tpu7x", "2x2x1"),
        ]
    ),
    "a full v5p pod slice": a_manifest(pools=[tpu_pool(topology="16x16x24")]),
    "several GPU hosts": a_manifest(pools=[gpu_pool(hosts=4, acceleratorsPerHost=8)]),
    "shared memory of a chosen size": a_manifest(pools=[gpu_pool(sharedMemory="64Gi"), cpu_pool(sharedMemory="0")]),
    "half a gibibyte of shared memory": a_manifest(pools=[gpu_pool(sharedMemory="0.5Gi")]),
    "a volume in kibibytes": a_manifest(spec={"syncer": {"storage": {"size": "10485760Ki"}}}),
    "a volume in bytes": a_manifest(spec={"syncer": {"storage": {"size": "10737418240"}}}),
    "a process for each GPU of whole hosts": a_manifest(pools=[gpu_pool(hosts=2, processesPerHost=8)]),
    "two GPUs for each process": a_manifest(pools=[gpu_pool(acceleratorsPerHost=4, processesPerHost=2)]),
    "several processes without accelerators": a_manifest(pools=[cpu_pool(hosts=2, processesPerHost=3)]),
    "one process of a TPU host": a_manifest(pools=[tpu_pool(processesPerHost=1)]),
    "machines without accelerators": a_manifest(pools=[cpu_pool(hosts=1)]),
    "quorum of the minimum": a_manifest(quorum=2),
    "one fragment, no overlap, every step": a_manifest(fragments=1, syncInterval=1, overlapSteps=0),
    "exact bounds of names": a_manifest("a" * 32, pools=[tpu_pool("fifteen-letters")]),
    "as many failures as a status holds": with_field(a_manifest(max=64), "spec.learners.restart.limit", 156),
    "no back-off at all": with_field(a_manifest(), "spec.learners.restart.backoff", {"initial": "0s", "max": "0s"}),
    "another time to join": with_field(a_manifest(), "spec.learners.timeouts", {"join": "20m"}),
    "units that never move": with_field(a_manifest(), "spec.placement", {"maxMoving": 0}),
    "the order of the pools": with_field(a_manifest(), "spec.placement", {"objective": "Preference", "horizon": "2h"}),
    "fractions in durations": with_field(a_manifest(), "spec.learners.stallTimeout", "1.5h30m0.5s250ms"),
    "snapshots elsewhere": a_manifest(checkpoint={"uri": "s3://bucket/folder"}),
    "snapshots in a folder": a_manifest(checkpoint={"uri": "file:///mnt/snapshots"}),
    "a start from a file of a bucket": a_manifest(spec={"startFrom": {"uri": "s3://bucket/base.safetensors"}}),
    "a start from a folder": a_manifest(spec={"startFrom": {"uri": "file:///mnt/models/base"}}),
    "a syncer of one's own": a_manifest(spec={"syncer": {"template": template("syncer")}}),
    "labels for the syncer only": a_manifest(spec={"syncer": {"template": {"metadata": {"labels": {"team": "a"}}}}}),
    "a job with a queue": a_manifest(spec={"queueName": "team-a"}),
    "another controller's job": a_manifest(spec={"managedBy": "example.org/other"}),
}

IMMUTABLE: dict[str, tuple[str, Any, str]] = {
    "managedBy": ("spec.managedBy", "example.org/other", "managedBy is immutable"),
    "queueName": ("spec.queueName", "team-a", "queueName can be changed only in a job that is suspended before or after the change"),
    "fragments": ("spec.training.fragments", 12, "fragments is immutable"),
    "accelerator": ("spec.pools[1].accelerator", "nvidia-b200", "accelerator of a pool is immutable"),
    "storage size": ("spec.syncer.storage.size", "5Gi", "size is immutable"),
    "storage class": ("spec.syncer.storage.className", "fast", "className is immutable"),
    "syncer in another cluster": ("spec.syncer.at", AT_HOME, "syncer.at can be neither added nor removed"),
}
"""A field of `a_manifest()`, the value that it cannot change to, and words of the refusal."""


def an_ended_job(condition: str, retry: int = 0, *, step: int = 2400, budget: int | None = None) -> Obj:
    """A job of 2,400 steps that is Complete or Failed, and of which the operator has acted on `retry`. It got to `step` with 6,000 tokens
    of its `budget`."""
    conditions = [
        {"type": kind, "status": str(kind == condition), "reason": "Any", "lastTransitionTime": "2026-11-20T12:00:00Z"}
        for kind in ("Complete", "Failed")
    ]
    progress = {"step": step, "steps": 2400, "tokens": 6000, **({"tokenBudget": budget} if budget else {})}
    status = {"conditions": conditions, "progress": progress, **({"retry": retry} if retry else {})}
    job = {**a_manifest(steps=2400, spec={"retry": retry} if retry else {}), "status": status}
    return with_field(job, "spec.training.tokens", budget) if budget else job


_WITHOUT_RETRY = "set spec.retry above status.retry"
_WITHOUT_STEPS = "raise spec.training.steps above status.progress.steps"
_STARTED = "startFrom is immutable once the job has taken a step"
_CHANGES: dict[str, Obj] = {
    "suspension": {"spec.suspend": True},
    "scale": {"spec.learners.max": 5},
    "image": {"spec.pools[0].template.spec.containers[0].image": "registry.example/train:2"},
    "pool less": {"spec.pools": [tpu_pool()]},
    "priority": {"spec.priorityClassName": "high"},
    "queue": {"spec.queueName": "team-b", "spec.suspend": True},
    "fewer steps": {"spec.training.steps": 1200},
    "syncer template": {"spec.syncer.template": {"spec": {"nodeSelector": {"pool": "cpu"}}}},
}
WITHOUT_EFFECT: dict[str, tuple[Obj, Obj, str]] = {
    **{f"{what} of a failed job": (an_ended_job("Failed"), change, _WITHOUT_RETRY) for what, change in _CHANGES.items()},
    **{f"{what} of a complete job": (an_ended_job("Complete"), change, _WITHOUT_STEPS) for what, change in _CHANGES.items()},
    "more steps of a failed job": (an_ended_job("Failed"), {"spec.training.steps": 4800}, _WITHOUT_RETRY),
    "retry that was acted on": (with_field(an_ended_job("Failed", retry=3), "spec.retry", 1), {"spec.retry": 3}, _WITHOUT_RETRY),
    "retry of 0": (an_ended_job("Failed", retry=3), {"spec.retry": 0, "spec.learners.max": 5}, _WITHOUT_RETRY),
    "retry of a complete job": (an_ended_job("Complete"), {"spec.retry": 1}, _WITHOUT_STEPS),
    "tokens of a job that its steps ended": (an_ended_job("Complete", budget=9000), {"spec.training.tokens": 12000}, _WITHOUT_STEPS),
    "steps of a job that has no tokens left": (
        an_ended_job("Complete", step=500, budget=5000),
        {"spec.training.steps": 4800},
        _WITHOUT_STEPS,
    ),
    "tokens of which there were more": (an_ended_job("Complete", step=500, budget=5000), {"spec.training.tokens": 6000}, _WITHOUT_STEPS),
    "another start of a job that trains": (an_ended_job("", step=1), {"spec.startFrom": {"uri": "s3://bucket/base"}}, _STARTED),
    "no start of a job that trains": (
        with_field(an_ended_job("", step=1), "spec.startFrom", {"uri": "s3://bucket/base"}),
        {"spec.startFrom": ...},
        _STARTED,
    ),
    "tokens of a job that a program ended": (
        an_ended_job("Complete", step=500, budget=9000),
        {"spec.training.tokens": 12000},
        _WITHOUT_STEPS,
    ),
}
"""A job that has ended or trains, a change of its fields that has no effect, and words of the refusal."""

WITH_EFFECT: dict[str, tuple[Obj, Obj]] = {
    "another start of a job that has taken no step": (
        with_field(an_ended_job("Failed", step=0), "spec.startFrom", {"uri": "s3://bucket/bsae"}),
        {"spec.startFrom": {"uri": "s3://bucket/base"}, "spec.retry": 1},
    ),
    "nothing": (an_ended_job("Failed"), {}),
    "labels": (an_ended_job("Complete"), {"metadata.labels": {"team": "a"}}),
    "time to live of a failed job": (an_ended_job("Failed"), {"spec.ttlSecondsAfterFinished": 60}),
    "time to live of a complete job": (an_ended_job("Complete"), {"spec.ttlSecondsAfterFinished": 60}),
    "claim that stays": (an_ended_job("Complete"), {"spec.syncer.storage.retain": "Keep"}),
    "retry": (an_ended_job("Failed"), {"spec.retry": 1}),
    "one more retry": (an_ended_job("Failed", retry=3), {"spec.retry": 4}),
    "retry that a manifest lowers": (an_ended_job("Failed", retry=3), {"spec.retry": 2}),
    "retry that a manifest does not have": (an_ended_job("Complete", retry=3), {"spec.retry": ...}),
    **{f"retry with another {what}": (an_ended_job("Failed"), {**change, "spec.retry": 1}) for what, change in _CHANGES.items()},
    "more steps": (an_ended_job("Complete"), {"spec.training.steps": 4800}),
    "more tokens": (an_ended_job("Complete", step=500, budget=5000), {"spec.training.tokens": 9000}),
    "no budget any more": (an_ended_job("Complete", step=500, budget=5000), {"spec.training.tokens": ...}),
    "more steps with tokens left": (an_ended_job("Complete", budget=9000), {"spec.training.steps": 4800}),
    "more steps and learners": (an_ended_job("Complete"), {"spec.training.steps": 4800, "spec.learners.max": 5}),
}
"""A job that has ended, and a change that an API server must take."""


def changed(obj: Obj, change: Obj) -> Obj:
    """A copy with other values of some fields, by path."""
    for path, value in change.items():
        obj = with_field(obj, path, value)
    return obj
