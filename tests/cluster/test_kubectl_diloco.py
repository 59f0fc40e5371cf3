"""`kubectl diloco` at work: a real control plane, the operator, and units that train."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from builders.control_plane import CommandFailed, ControlPlane
from builders.kube_jobs import KubeCluster, kube_cluster, operator
from builders.local_jobs import a_fleet, a_quadratic_job
from safetensors.numpy import load_file

pytestmark = [pytest.mark.timeout(1800), pytest.mark.xdist_group("many-learners")]  # one control plane with test_kube_jobs.py

KINDS = ("pods", "pvc", "configmaps", "secrets", "services")
CRASHED = "RuntimeError: crash as requested at this step\n"


def contribute(count: int) -> Any:
    return lambda job: bool(job) and job.get("status", {}).get("learners", {}).get("contributing") == count


def attempts(job: Any) -> dict[str, int]:
    return {unit["name"]: unit["attempt"] for unit in job["status"]["units"]}


def of_job(plane: ControlPlane, *kinds: str) -> list[str]:
    """`kind/name` of the objects of the job `quad`."""
    return plane.kubectl("get", ",".join(kinds), "-l", "diloco.dev/job=quad", "-o", "name").stdout.split()


def unfinished(folder: Path) -> list[Path]:
    return list(folder.glob("**/*.part"))


def listed(plane: ControlPlane) -> list[str]:
    """The row of the job as kubectl prints it: name, state, reason, learners that contribute, and of how many."""
    return plane.kubectl("get", "dlj", "quad", "--no-headers").stdout.split()[:5]


def is_true(how: str) -> Any:
    return lambda job: bool(job) and any(c["type"] == how and c["status"] == "True" for c in job["status"]["conditions"])


@dataclass(frozen=True)
class JobAtWork:
    """The job `quad` and what acts on it. Each function below is a part of its life, and begins where the one before ends."""

    plane: ControlPlane
    cluster: KubeCluster
    folder: Path

    async def diloco(self, *args: str) -> str:
        """What `kubectl diloco ARGS` prints."""
        return (await asyncio.to_thread(self.plane.kubectl, "diloco", *args)).stdout


async def trains_on_after_a_crash(job: JobAtWork) -> None:
    crash = {"QUADRATIC_CRASH_AT_STEP": 6, "QUADRATIC_CRASH_UNIT": "v5p-1"}
    await job.cluster.apply(a_quadratic_job(steps=1_000_000, every_steps=4, environment={"QUADRATIC_STEP_MS": 100, **crash}))
    await job.cluster.job("quad", lambda obj: contribute(3)(obj) and attempts(obj) == {"v5p-0": 1, "v5p-1": 2, "h100-0": 1})
    assert (await job.diloco("logs", "quad", "v5p-1", "-p")).endswith(CRASHED)
    shown = await job.diloco("status", "quad")
    assert "\n  Training (QuorumContributing): 3 of 3 learners contribute\n" in shown
    assert listed(job.plane) == ["quad", "Training", "QuorumContributing", "3", "3"]
    assert [line.split()[:2] for line in shown.splitlines() if line.startswith("v5p-0 ")] == [["v5p-0", "Training"]]

    said = await job.diloco("export", "quad", "-o", str(job.folder / "running.safetensors"))
    assert f"{job.folder}/running.safetensors: " in said
    assert "of job quad, sha256 " in said


async def is_suspended_exported_and_resumed(job: JobAtWork) -> None:
    plane, cluster, folder = job.plane, job.cluster, job.folder
    said = await job.diloco("suspend", "quad", "--wait", "--timeout", "5m")
    assert said.splitlines()[-1] == "dilocojob.diloco.dev/quad: no pod runs any more, the state is saved"
    parked = (await cluster.job("quad", contribute(0)))["status"]["progress"]["step"]
    assert listed(plane) == ["quad", "Suspended", "Suspended", "0", "0"]
    assert of_job(plane, "pods") == ["pod/quad-v5p-1-a1-0"], "what ended by itself stays, and nothing else"

    (folder / "parked").mkdir()
    said = await job.diloco("export", "quad", "-o", str(folder / "parked"))
    assert f"outer step {parked} of job quad" in said
    assert load_file(folder / "parked" / "model.safetensors").keys() == load_file(folder / "running.safetensors").keys()
    unknown = await asyncio.to_thread(plane.kubectl, "diloco", "export", "quad", "--step", "7", check=False)
    assert unknown.returncode == 1
    assert "there is no snapshot of outer step 7 in " in unknown.stderr
    assert f"outer steps {parked}, " in unknown.stderr
    assert unfinished(folder) == []
    left = plane.request("GET", "/api/v1/namespaces/default/pods?labelSelector=diloco.dev/component=export")["items"]
    assert [pod for pod in left if "deletionTimestamp" not in pod["metadata"]] == []

    said = await job.diloco("resume", "quad", "--wait", "--timeout", "5m")
    assert said.splitlines()[-1].startswith("dilocojob.diloco.dev/quad trains: ")
    resumed = (await cluster.job("quad", contribute(3)))["status"]
    assert resumed["progress"]["step"] >= parked
    line = r"^  newest snapshot: outer step (\d+), in claim quad-syncer, snapshots/snapshot-\d+-t\1 \(safetensors\); "
    newest = re.search(line, await job.diloco("status", "quad"), re.MULTILINE)
    assert newest is not None
    assert int(newest[1]) >= resumed["model"]["step"], "the job trains on meanwhile"


async def completes(job: JobAtWork) -> None:
    """The pods stay, and so do their logs."""
    plane, cluster = job.plane, job.cluster
    # The syncer begins anew with them. Enough for all units to come back: one that is late would miss the end of the job.
    steps = (await cluster.job("quad"))["status"]["progress"]["step"] + 150
    await cluster.change("quad", {"training": {"steps": steps}})
    await cluster.kubectl("wait", "dlj/quad", "--for=condition=Complete", "--timeout=180s")
    assert listed(plane)[:3] == ["quad", "Complete", "StepsReached"]
    ended = {unit: f"pod/quad-{unit}-a{attempt}-0" for unit, attempt in attempts(await cluster.job("quad")).items()}
    for pod in (*ended.values(), "pod/quad-syncer"):
        await cluster.kubectl("wait", pod, "--for=jsonpath={.status.phase}=Succeeded", "--timeout=180s")
    assert of_job(plane, "pods") == sorted([*ended.values(), "pod/quad-v5p-1-a1-0", "pod/quad-syncer"])
    ledger = "samples of sequence numbers 0 to"
    assert ledger in await cluster.kubectl("logs", "quad-syncer")
    assert ledger in await job.diloco("logs", "quad", "syncer", "-f")
    assert await job.diloco("logs", "quad", "v5p-0") == await cluster.kubectl("logs", ended["v5p-0"])
    assert (await job.diloco("logs", "quad", "v5p-1", "-p")).endswith(CRASHED)

    said = await job.diloco("export", "quad", "-n", "default", "-o", str(job.folder / "complete.safetensors"))
    assert f"outer step {steps} of job quad, sha256 " in said


async def goes_on_fails_and_is_retried(job: JobAtWork) -> int:
    """The complete job goes on with more steps, fails, is retried in vain, then with a better template. Its steps at the end."""
    plane, cluster, diloco = job.plane, job.cluster, job.diloco

    def patched(**spec: Any) -> str:
        return plane.kubectl("patch", "dlj/quad", "--type=merge", "-p", json.dumps({"spec": spec})).stdout

    def refused(**spec: Any) -> str:
        with pytest.raises(CommandFailed) as error:
            patched(**spec)
        return str(error.value.done.stderr)

    complete = (await cluster.job("quad", is_true("Complete")))["status"]
    step: int = complete["progress"]["step"]
    steps = step + 40
    bad, good = (
        a_quadratic_job(environment={key: value})["spec"]["pools"]
        # Steps that are long enough for an answer to come in time on a busy machine, else no outer step merges anything.
        for key, value in (("QUADRATIC_CRASH_AT_STEP", 1), ("QUADRATIC_STEP_MS", 200))
    )
    with pytest.raises(CommandFailed) as error:
        await diloco("retry", "quad")
    assert error.value.done.stderr == f'Error: job "quad" is complete; to train on, raise spec.training.steps above {step}\n'
    what = "the job is complete, and this change has no effect; to train on from its final snapshot, raise spec.training.steps"
    assert what in refused(pools=bad)
    assert patched(pools=bad, learners={"restart": {"limit": 0}}, training={"steps": steps}) == "dilocojob.diloco.dev/quad patched\n"
    failed = (await cluster.job("quad", is_true("Failed")))["status"]
    assert listed(plane)[:3] == ["quad", "Failed", "RestartsExhausted"]
    message = next(c["message"] for c in failed["conditions"] if c["type"] == "Failed")
    assert "Fix the cause, then kubectl diloco retry quad -n default; a change of the spec goes with a higher spec.retry" in message

    for change in ({"pools": good}, {"learners": {"max": 2}}, {"suspend": True}):
        assert "this change alone has no effect; set spec.retry above status.retry" in refused(**change)
    with pytest.raises(CommandFailed) as error:
        await diloco("retry", "quad", "--wait", "--timeout", "5m")
    done = error.value.done
    assert done.stdout == f"dilocojob.diloco.dev/quad: retry 1: the job starts again from its last snapshot, of outer step {step}\n"
    assert done.stderr.startswith('Error: job "quad" failed: RestartsExhausted: 3 units have been given up')

    assert patched(retry=2, pools=good) == "dilocojob.diloco.dev/quad patched\n"
    further = (await cluster.job("quad", is_true("Complete")))["status"]
    assert (further["retry"], further["progress"]["step"], further["progress"]["steps"]) == (2, steps, steps)
    assert further["progress"]["tokens"] > complete["progress"]["tokens"]
    events = plane.kubectl("events", "--for", "dilocojob/quad").stdout
    assert f"Complete=False: the job goes on from its final snapshot, of outer step {step}, to {steps} steps" in events
    assert f"Failed=False: retry 2: the job starts again from its last snapshot, of outer step {step}" in events
    return steps


async def leaves_its_model_when_it_is_deleted(job: JobAtWork, steps: int) -> None:
    """Without another word the model goes with the job. It is kept, and then in the way of a job of its name only."""
    plane, cluster = job.plane, job.cluster
    model = (await cluster.job("quad"))["status"]["model"]
    assert model["path"].endswith(f"-t{steps}")
    where = f"The model is in claim quad-syncer, {model['path']} (safetensors); the claim"
    assert f"{where} is deleted with the job (syncer.storage.retain: Delete)\n" in await job.diloco("status", "quad")
    assert "\n  the model as one file: kubectl diloco export quad -n default -o" in await job.diloco("status", "quad")
    await cluster.change("quad", {"syncer": {"storage": {"retain": "Keep"}}})
    await cluster.kubectl("wait", "dlj/quad", "--for=jsonpath={.status.model.retain}=Keep", "--timeout=180s")
    assert f"{where} stays when the job is deleted (syncer.storage.retain: Keep)\n" in await job.diloco("status", "quad")
    await cluster.kubectl("delete", "dlj/quad", "--timeout=180s")
    objects = ("pods", "configmaps", "secrets", "services")
    plane.wait_for(lambda: of_job(plane, *objects) == [], "everything of the job but its claim to be gone")
    kept = plane.kubectl("get", "pvc", "-l", "diloco.dev/retain=Keep", "-o", "name").stdout
    assert kept.split() == ["persistentvolumeclaim/quad-syncer"]
    assert list((cluster.nodes.folder / "state" / "volumes").glob(f"**/{model['path']}/tensors.safetensors"))

    await cluster.apply(a_quadratic_job())
    second = await cluster.job("quad", lambda obj: "keeps the model of an earlier job" in str((obj or {}).get("status")))
    assert (of_job(plane, "pods"), "model" in second["status"]) == ([], False)
    await cluster.kubectl("delete", "dlj/quad", "--timeout=180s")
    plane.wait_for(lambda: of_job(plane, *objects) == [], "everything of the second job to be gone")
    assert of_job(plane, "pvc") == ["persistentvolumeclaim/quad-syncer"]


async def test_a_job_is_read_suspended_resumed_completed_retried_and_deleted(jobs_plane: ControlPlane, tmp_path: Path) -> None:
    plane = jobs_plane
    plane.wait_for(lambda: of_job(plane, *KINDS) == [], "the jobs of earlier tests to be gone")
    async with kube_cluster(plane, tmp_path, a_fleet(tpus=2, gpus=1)) as cluster:
        with operator(plane, tmp_path):
            job = JobAtWork(plane, cluster, tmp_path)
            await trains_on_after_a_crash(job)
            await is_suspended_exported_and_resumed(job)
            await completes(job)
            steps = await goes_on_fails_and_is_retried(job)
            await leaves_its_model_when_it_is_deleted(job, steps)
