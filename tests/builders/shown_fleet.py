"""A fleet of two teams to look at: what the screenshots of the documents show. No program runs in it; all objects are written here.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from builders.jobs import JobBuilder, Obj
from builders.nodes import GPU, TPU, a_gpu_node, a_tpu_node
from builders.pod_logs import Logs
from builders.pods import a_learner_pod, a_pod
from diloco_local.memory import MemoryApi
from diloco_operator.api import names
from diloco_operator.api.crd import build_crd
from diloco_operator.kube.client import ObjList, Resource, WatchEvent
from diloco_operator.kube.timestamps import format_timestamp

TEAM, JOB, UNIT = "pretraining", "llama-8b", "h100-1"
"""The unit begins again on two hosts, of which one cannot pull its image."""
_IMAGE = "europe-docker.pkg.dev/example/train/llama:2026-11-24"
_NO_IMAGE = f'Back-off pulling image "{_IMAGE}": failed to resolve reference: unexpected status 503 Service Unavailable'
_LOST = "rank 13 of unit h100-1 is lost: nothing was heard of it for 4 s: its process or its host is frozen, or cut off"
_ZONES = ("us-east5-a", "us-east5-b", "europe-west4-b")


async def a_shown_fleet() -> MemoryApi:
    """Return an API server with this fleet, whose times are counted from now."""
    api, now = _WithQuotas(), time.time()
    await api.create(names.CUSTOM_RESOURCES, build_crd())
    for namespace in (TEAM, "research"):
        await api.create(names.NAMESPACES, {"metadata": {"name": namespace}})
    for node in _nodes():
        await api.create(names.NODES, node)
    await _job(api, _pretraining(), _pretraining_status(now))
    uid = (await api.get(names.DILOCO_JOBS, TEAM, JOB))["metadata"]["uid"]
    for pod in (*_learners(uid, now), *_strangers()):
        await _with_status(api, names.PODS, pod)
    await _job(api, _tuning(), _tuning_status(now))
    for event in _events(uid, now):
        await api.create(names.EVENTS, event)
    return api


class _WithQuotas(MemoryApi):
    """An API server with quotas, which that of this machine has not: it starts without Kueue, and counts no ResourceQuota."""

    async def list(self, resource: Resource, namespace: str = "", **how: Any) -> ObjList:
        quotas = _QUOTAS.get(resource)
        return await super().list(resource, namespace, **how) if quotas is None else ObjList(list(quotas), "1")

    def watch(self, resource: Resource, namespace: str = "", **how: Any) -> AsyncIterator[WatchEvent]:
        return super().watch(resource, namespace, **how) if resource not in _QUOTAS else _unchanging(how["timeout_seconds"])


async def _unchanging(seconds: float) -> AsyncIterator[WatchEvent]:
    await asyncio.sleep(seconds)
    changes: list[WatchEvent] = []
    for change in changes:
        yield change


def shown_logs() -> Logs:
    """Return what the learners of the fleet have written."""
    lines = [f"{_clock(second)} step {3200 + second} loss {2.61 - second / 2000:.4f} 41.9k tokens/s" for second in range(0, 240, 12)]
    meets = "rank 0 of 16 on h100-2: waits for ranks 8 to 15 (MASTER_ADDR llama-8b-h100-1-a3-0.llama-8b)"
    starts = [f"{_clock(0)} imports took 6.2 s", f"{_clock(7)} {meets}", f"{_clock(37)} {meets}, 30 s", f"{_clock(67)} {meets}, 60 s"]
    return Logs(
        llama_8b_h100_1_a3_0=["\n".join([*starts, ""]).encode()],
        llama_8b_v5p_0_a1_0=["\n".join([*lines, ""]).encode()],
        llama_8b_h100_0_a1_0=["\n".join([*lines, ""]).encode()],
    )


def _clock(second: int) -> str:
    return f"2026-11-26T14:{2 + second // 60:02}:{second % 60:02}Z"


# --- nodes and quotas -------------------------------------------------------------------------------------------------
def _nodes() -> Iterator[Obj]:
    for pool, zone in zip(("v5p-a", "v5p-b", "v5p-c", "v5p-d"), (_ZONES[0], _ZONES[0], _ZONES[1], _ZONES[1]), strict=True):
        for host in range(2):
            labels = {"topology.kubernetes.io/zone": zone}
            yield a_tpu_node(f"{pool}-{host}", topology="2x2x2", pool=pool, labels=labels, ready=pool != "v5p-d")
    for index in range(4):
        labels = {"topology.kubernetes.io/zone": _ZONES[2]}
        yield a_tpu_node(f"v6e-{index}", kind="tpu-v6e-slice", topology="2x2", labels=labels)
    for index in range(6):
        yield a_gpu_node(f"h100-{index}", labels={"topology.kubernetes.io/zone": _ZONES[index // 4]})


def _quota(name: str, **amounts: tuple[str, str]) -> Obj:
    hard, used = ({_RESOURCES[resource]: pair[index] for resource, pair in amounts.items()} for index in (0, 1))
    return {
        "metadata": {"name": name, "namespace": TEAM, "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": {"hard": hard},
        "status": {"hard": hard, "used": used},
    }


def _queue(name: str, waiting: int, **flavors: tuple[str, str, str]) -> Obj:
    """Return a ClusterQueue. `flavors`: the resource of each, how much of it the queue allows, and how much is used."""
    named = {flavor.replace("_", "-"): each for flavor, each in flavors.items()}
    allows = [{"name": flavor, "resources": [{"name": _RESOURCES[each[0]], "nominalQuota": each[1]}]} for flavor, each in named.items()]
    used = [{"name": flavor, "resources": [{"name": _RESOURCES[each[0]], "total": each[2]}]} for flavor, each in named.items()]
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": {"resourceGroups": [{"flavors": allows}]},
        "status": {"pendingWorkloads": waiting, "flavorsUsage": used},
    }


_RESOURCES = {"tpus": f"requests.{TPU}", "gpus": f"requests.{GPU}", "pods": "pods", "tpu": TPU, "gpu": GPU}
_QUOTAS: Mapping[Resource, Sequence[Obj]] = {
    names.QUOTAS: [_quota("accelerators", tpus=("24", "16"), gpus=("40", "32"), pods=("200", "10"))],
    names.CLUSTER_QUEUES: [_queue("research", 2, v6e=("tpu", "16", "4"), h100_spot=("gpu", "16", "8"))],
}


def _strangers() -> Iterator[Obj]:
    """Pods that no job of DiLoCo has: another program on a slice of v6e and on a host of GPUs."""
    for name, node, resource, count in (("batch-eval-0", "v6e-2", TPU, "4"), ("notebook-7", "h100-4", GPU, "8")):
        amounts = {resource: count}
        pod = a_pod(name, node=node, container={"resources": {"limits": amounts, "requests": amounts}}, metadata={"namespace": "research"})
        yield {**pod, "status": {"phase": "Running"}}


# --- the job that trains ----------------------------------------------------------------------------------------------
def _pretraining() -> Obj:
    job = JobBuilder(JOB).in_namespace(TEAM).with_learners(2, 4).with_training(steps=2400, quorum=2, syncInterval=100)
    pools = job.with_pool("v5p", accelerator="tpu-v5p", topology="2x2x2", max=2).with_gpu_pool("h100", hosts=2, processesPerHost=8, max=3)
    return pools.build()


def _pretraining_status(now: float) -> Obj:
    def ago(seconds: float) -> str:
        return format_timestamp(now - seconds)

    units = [
        {
            "name": "v5p-0", "pool": "v5p", "state": "Training", "slice": "v5p-a", "attempt": 1, "since": ago(11_300),
            "tokensPerSecond": 41_900.0, "weight": 0.34, "staleness": 1, "tokens": 468_000_000, "steps": 3_420, "stepsPerSync": 102,
        },
        {
            "name": "v5p-1", "pool": "v5p", "state": "Training", "slice": "v5p-c", "attempt": 1, "since": ago(11_300),
            "tokensPerSecond": 29_700.0, "weight": 0.24, "staleness": 4, "tokens": 455_000_000, "steps": 3_320, "stepsPerSync": 72,
        },
        {
            "name": "h100-0", "pool": "h100", "state": "Training", "slice": "h100-0+h100-1", "attempt": 1, "since": ago(9_100),
            "tokensPerSecond": 51_300.0, "weight": 0.42, "staleness": 1, "tokens": 443_000_000, "steps": 3_050, "stepsPerSync": 104,
            "beganWith": "the newest state of the syncer; imports 6.2 s, model 14.0 s, state 8.1 s, first step 31.5 s",
        },
        {
            "name": UNIT, "pool": "h100", "state": "Starting", "slice": "h100-2+h100-3", "attempt": 3, "restarts": 2, "since": ago(94),
            "tokens": 371_000_000, "steps": 2_710, "reason": "PullingImages",
            "message": f"llama-8b-h100-1-a3-1: its container cannot start on h100-3: ImagePullBackOff: {_NO_IMAGE}",
            "lastFailure": f"RankLost: {_LOST}",
        },
    ]  # fmt: skip
    failures = [{"unit": UNIT, "attempt": 2, "at": ago(130), "reason": "RankLost"}]
    host = {"node": "h100-3", "uid": "uid-h100-3", "failures": failures, "message": f"RankLost: {_LOST}"}
    said = "3 of 4 units contribute; unit h100-1 does not train"
    return {
        "state": "Training", "reason": "QuorumContributing", "message": said,
        "progress": {
            "step": 1_312, "steps": 2_400, "tokens": 1_437_000_000, "tokensPerSecond": 122_900.0, "loss": 2.5183,
            "losses": " ".join(f"{step}:{2.35 + 8.6 * math.exp(-step / 190):.3f}" for step in range(1, 1_313, 23)),
            "estimatedCompletion": format_timestamp(now + 9_420),
        },
        "learners": {"desired": 4, "placed": 4, "contributing": 3, "min": 2, "max": 4},
        "goodput": {
            "productiveShare": 0.914, "interruptions": 3, "measuredAt": ago(2),
            "unitSeconds": {"training": 41_200.0, "start": 1_900.0, "compile": 640.0, "recovery": 880.0, "waiting": 460.0},
        },
        "units": units,
        "hosts": [{**host, "avoidedUntil": format_timestamp(now + 1_500), "avoidances": 1}],
        "pools": [
            {"name": "v5p", "placed": 2, "contributing": 2, "tokensPerSecond": 35_800.0, "reason": "AtMaximum",
             "message": "it has all of its units"},
            {"name": "h100", "placed": 2, "contributing": 1, "tokensPerSecond": 51_300.0, "reason": "NoFreeSlice",
             "message": "no free slice: 4 of 6 hosts have units of this job, 1 is in other use"},
        ],
        "conditions": [
            _condition("Training", "QuorumContributing", said, ago(11_200)),
            {**_condition("Degraded", "EnoughLearners", "3 contribute, learners.min is 2", ago(9_000)), "status": "False"},
        ],
    }  # fmt: skip


def _condition(kind: str, reason: str, message: str, at: str) -> Obj:
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": at}


def _learners(job: str, now: float) -> Iterator[Obj]:
    running = {"running": {"startedAt": format_timestamp(now - 80)}}
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": _NO_IMAGE}}
    yield _learner(job, UNIT, 3, 0, "h100-2", running)
    yield _learner(job, UNIT, 3, 1, "h100-3", waiting)
    trains = {"running": {"startedAt": format_timestamp(now - 11_300)}}
    for unit, pool in (("v5p-0", "v5p-a"), ("v5p-1", "v5p-c")):
        for host in range(2):
            yield _learner(job, unit, 1, host, f"{pool}-{host}", trains)
    for host in range(2):
        yield _learner(job, "h100-0", 1, host, f"h100-{host}", trains)


def _learner(job: str, unit: str, attempt: int, host: int, node: str, state: Obj) -> Obj:
    pod = a_learner_pod(unit, attempt, host, node=node, job=JOB)
    amounts = {GPU: "8"} if unit.startswith("h100") else {TPU: "4"}
    main = {"name": "learner", "image": _IMAGE, "resources": {"limits": amounts, "requests": amounts}}
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": JOB, "uid": job, "controller": True}
    meta = {key: value for key, value in pod["metadata"].items() if key in ("name", "labels", "annotations")}
    status = {"phase": "Running" if "running" in state else "Pending"}
    containers = [{"name": "learner", "image": _IMAGE, "imageID": "", "ready": False, "restartCount": 0, "state": state}]
    return {
        "metadata": {**meta, "namespace": TEAM, "ownerReferences": [owner]},
        "spec": {"containers": [main], "nodeName": node},
        "status": {**status, "containerStatuses": containers},
    }


def _events(job: str, now: float) -> Iterator[Obj]:
    about = {"apiVersion": names.API_VERSION, "kind": names.KIND, "namespace": TEAM, "name": JOB, "uid": job}
    ends = (
        (2_900, UNIT, "UnitCrashed", "attempt 1 ended: exit 1: TimeoutError: shard 112 of the data set cannot be read"),
        (130, UNIT, "UnitCrashed", f"attempt 2 ended: {_LOST}"),
    )
    for seconds, unit, reason, said in ends:
        yield {
            "metadata": {
                "name": f"{unit}-ended-{seconds}", "namespace": TEAM,
                "annotations": {names.LABEL_UNIT: unit, names.ANNOTATION_SAID: said},
            },
            "involvedObject": about, "reason": reason, "message": f"{unit}: {said}", "type": "Warning",
            "lastTimestamp": format_timestamp(now - seconds),
        }  # fmt: skip


# --- the job that waits -----------------------------------------------------------------------------------------------
def _tuning() -> Obj:
    job = JobBuilder("instruction-tuning").in_namespace("research").with_learners(2, 3).with_training(steps=600, quorum=2)
    return job.with_pool("v6e", accelerator="tpu-v6e", topology="2x2", max=3).build()


def _tuning_status(now: float) -> Obj:
    since = format_timestamp(now - 1_260)
    said = "1 of 3 units has hardware, learners.min is 2; v6e: no free slice"
    unit = {"name": "v6e-0", "pool": "v6e", "state": "Joining", "slice": "v6e-0", "attempt": 1, "since": since}
    waits = {**unit, "name": "v6e-1", "state": "Pending", "slice": "", "attempt": 0, "reason": "NoCapacity", "message": "no slice is free"}
    return {
        "state": "Queued", "reason": "WaitingForHardware", "message": said,
        "progress": {"step": 0, "steps": 600},
        "learners": {"desired": 3, "placed": 1, "contributing": 0, "min": 2, "max": 3},
        "units": [unit, waits],
        "pools": [
            {"name": "v6e", "placed": 1, "contributing": 0, "reason": "NoFreeSlice", "waitingSince": since,
             "message": "2 slices of 4 are not ready, 1 is in other use"},
        ],
        "conditions": [{**_condition("Placed", "InsufficientCapacity", said, since), "status": "False"}],
    }  # fmt: skip


# --- writes -----------------------------------------------------------------------------------------------------------
async def _job(api: MemoryApi, job: Obj, status: Obj) -> None:
    await _with_status(api, names.DILOCO_JOBS, {**job, "status": status})


async def _with_status(api: MemoryApi, resource: Resource, obj: Obj) -> None:
    status: Any = obj["status"]
    made = await api.create(resource, {key: value for key, value in obj.items() if key != "status"})
    meta = made["metadata"]
    await api.patch(resource, meta.get("namespace", ""), meta["name"], {"status": status}, subresource="status")
