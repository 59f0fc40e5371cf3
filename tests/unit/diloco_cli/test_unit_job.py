"""`kubectl diloco logs`, `drain` and `explain`, given at home for a unit of another cluster: the program, a kubeconfig and two clusters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from builders.cluster_scenes import SINCE, conditions, owner_of, unit
from builders.jobs import Obj, a_job
from builders.pods import a_learner_pod
from builders.served_api import ServedApi, a_kubeconfig, served
from builders.virtual_time import until
from click.testing import CliRunner, Result
from diloco_cli.kubectl import main as kubectl
from diloco_local.memory import MemoryApi
from diloco_operator.api import names
from diloco_operator.api.crd import build_crd

pytestmark = pytest.mark.slow  # each runs the program

BY_HAND = [{"name": "tokyo", "pools": [{"name": "tokyo", "units": 2}]}]


class TwoClusters:
    """`bytes-lm` is in namespace `team` at home, where v5p-0 trains. Its other pool is in cluster tokyo."""

    def __init__(self, folder: Path, home: tuple[ServedApi, str], tokyo: tuple[ServedApi, str]) -> None:
        self.folder = folder
        (self.home, self._home_url), (self.tokyo, self._tokyo_url) = home, tokyo
        self.uid = ""
        """The job's."""

    async def begin(self, **spec: Any) -> None:
        for cluster in (self.home, self.tokyo):
            await cluster.api.create(names.CUSTOM_RESOURCES, build_crd())
            await cluster.api.create(names.NODES, {"metadata": {"name": "tpu-0"}})
        job = await self.add_job(self.home, "team", a_job().with_learners(1, 1).with_pool().with_spec(**spec).build(), unit())
        self.uid = job["metadata"]["uid"]

    async def job_with_made_part(self) -> None:
        """The operator at home makes the part in namespace `far`."""
        await self.begin()
        pools = [{"name": "v5p"}, {"name": "tokyo", "cluster": "tokyo", "assigned": 2}]
        await set_status(self.home, "team", "bytes-lm", pools=pools, parts=[{"name": "tokyo", "namespace": "far"}])

    async def job_with_part_by_hand(self) -> None:
        await self.begin(parts=BY_HAND)

    async def add_part(self, namespace: str = "far", name: str = "bytes-lm", *units: Obj, **home: str) -> None:
        job = a_job(name).in_namespace(namespace).with_pool("tokyo").build()
        await self.add_job(self.tokyo, namespace, job, *(units or (unit("tokyo-0"), unit("tokyo-1"))))
        await set_status(self.tokyo, namespace, name, home={"uid": self.uid, "part": "tokyo", **home})

    async def add_job(self, cluster: ServedApi, namespace: str, job: Obj, *units: Obj) -> Obj:
        """The job, with these units, each with a pod of one host."""
        name = job["metadata"]["name"]
        if namespace not in [obj["metadata"]["name"] for obj in (await cluster.api.list(names.NAMESPACES)).items]:
            await cluster.api.create(names.NAMESPACES, {"metadata": {"name": namespace}})
        created = await cluster.api.create(names.DILOCO_JOBS, job)
        await set_status(cluster, namespace, name, units=list(units))
        for each in units:
            pod = a_learner_pod(each["name"], job=name, namespace=namespace)
            meta = {key: pod["metadata"][key] for key in ("name", "namespace", "labels", "annotations")}
            meta["ownerReferences"] = [owner_of(created)]
            spec = {"containers": [{"name": "learner", "image": "i"}], "nodeName": "tpu-0", "terminationGracePeriodSeconds": 0}
            await cluster.api.create(names.PODS, {"metadata": meta, "spec": spec})
            await cluster.api.patch(names.PODS, namespace, meta["name"], {"status": {"phase": "Running"}}, subresource="status")
            cluster.logs[meta["name"]] = f"starts\n{name} {each['name']} trains\n".encode()
        return created

    async def diloco(self, *words: str, context: str = "tokyo", namespace: str = "") -> Result:
        """`kubectl diloco WORDS`. The kubeconfig has the contexts `home` and `context`, and tokyo's may name a namespace."""
        contexts = {"home": (self._home_url, "team"), context: (self._tokyo_url, namespace)}
        kubeconfig = a_kubeconfig(self.folder, contexts)
        return await asyncio.to_thread(CliRunner().invoke, kubectl.main, ["--kubeconfig", str(kubeconfig), *words])

    async def refused(self, *words: str, **options: str) -> str:
        result = await self.diloco(*words, **options)
        assert result.exit_code == 1, result.output
        assert result.stdout == ""
        return result.stderr


async def set_status(cluster: ServedApi, namespace: str, job: str, **status: Any) -> None:
    await cluster.api.patch(names.DILOCO_JOBS, namespace, job, {"status": status}, subresource="status")


@pytest.fixture
async def clusters(tmp_path: Path) -> AsyncIterator[TwoClusters]:
    async with served(MemoryApi()) as home, served(MemoryApi()) as tokyo:
        yield TwoClusters(tmp_path, home, tokyo)


# --- the context --------------------------------------------------------------------------------------------------------
async def test_logs_come_from_the_cluster_of_the_unit_by_the_context_of_its_name(clusters: TwoClusters) -> None:
    await clusters.job_with_made_part()
    await clusters.add_part()
    result = await clusters.diloco("logs", "bytes-lm", "tokyo-1", "--tail", "1")
    assert result.stderr == "unit tokyo-1 runs in cluster tokyo: job bytes-lm in namespace far there\n"
    assert result.stdout == "bytes-lm tokyo-1 trains\n"
    at_home = await clusters.diloco("logs", "bytes-lm", "v5p-0")
    assert (at_home.stdout, at_home.stderr) == ("starts\nbytes-lm v5p-0 trains\n", "")


async def test_an_option_names_the_context_before_or_after_other_words(clusters: TwoClusters) -> None:
    await clusters.job_with_made_part()
    await clusters.add_part()
    result = await clusters.diloco("logs", "--part-context", "arn:eu:1", "bytes-lm", "tokyo-0", "--tail=1", context="arn:eu:1")
    assert result.stdout == "bytes-lm tokyo-0 trains\n"


async def test_a_cluster_without_a_context_is_told_with_the_contexts_that_there_are(clusters: TwoClusters) -> None:
    await clusters.job_with_made_part()
    said = await clusters.refused("drain", "bytes-lm", "tokyo-0", context="asia")
    assert said.startswith('Error: unit tokyo-0 of job "bytes-lm" runs in cluster tokyo (context tokyo; --part-context names another): ')
    assert said.endswith("there is no context 'tokyo'; there are: home, asia\n")


async def test_a_cluster_that_does_not_answer_is_told_by_its_context(clusters: TwoClusters, tmp_path: Path) -> None:
    await clusters.job_with_made_part()
    clusters._tokyo_url = "http://127.0.0.1:9"
    said = await clusters.refused("logs", "bytes-lm", "tokyo-0")
    assert said.startswith(f"Error: the API server of the given kubeconfig {tmp_path}/kubeconfig, context tokyo cannot be reached: ")


# --- the part -----------------------------------------------------------------------------------------------------------
async def test_a_part_by_hand_is_found_in_the_namespace_of_the_context_and_then_in_that_of_the_job(clusters: TwoClusters) -> None:
    await clusters.job_with_part_by_hand()
    await clusters.add_part("team", "bytes-lm-tokyo")
    tail = ("logs", "bytes-lm", "tokyo-0", "--tail", "1")
    for namespace in ("", "team"):
        result = await clusters.diloco(*tail, namespace=namespace)
        assert result.stderr == "unit tokyo-0 runs in cluster tokyo: job bytes-lm-tokyo in namespace team there\n"
        assert result.stdout == "bytes-lm-tokyo tokyo-0 trains\n"
    clusters.tokyo.forbidden = {"default"}  # the part is in the second one
    assert (await clusters.diloco(*tail)).exit_code == 0


async def test_a_part_that_is_not_there_is_told_with_what_was_looked_for_and_where(clusters: TwoClusters) -> None:
    await clusters.job_with_part_by_hand()
    clusters.tokyo.forbidden = {"ml"}
    said = await clusters.refused("logs", "bytes-lm", "tokyo-0", namespace="ml")
    assert said == (
        'Error: unit tokyo-0 of job "bytes-lm" runs in cluster tokyo (context tokyo; --part-context names another): no DiLoCoJob there has '
        f'status.home with uid {clusters.uid} and part tokyo, in namespace ml (User "ana" cannot list resource "dilocojobs" in the '
        'namespace "ml") or team\n'
    )


async def test_a_made_part_is_looked_for_only_where_its_operator_makes_it(clusters: TwoClusters) -> None:
    await clusters.job_with_made_part()
    await clusters.add_part("team")
    assert " and part tokyo, in namespace far\n" in await clusters.refused("explain", "bytes-lm", "tokyo-0", namespace="team")


async def test_strangers_jobs_neither_pass_for_the_part_nor_hide_it(clusters: TwoClusters) -> None:
    await clusters.job_with_made_part()
    await clusters.add_part("far", "other-home", unit("tokyo-0", "Failed"), uid="ffff")
    await clusters.add_part("far", "other-part", unit("tokyo-0", "Failed"), part="osaka")
    ours = {"uid": clusters.uid, "part": "tokyo"}
    clusters.tokyo.strange = [
        "text", {}, {"metadata": {"name": "a"}, "status": []}, {"metadata": {"name": "a"}, "status": {"home": {**ours, "part": 7}}},
        {"metadata": {"name": "two\nlines"}, "status": {"home": ours}}, {"status": {"home": ours}},
    ]  # fmt: skip
    assert "no DiLoCoJob there has status.home" in await clusters.refused("drain", "bytes-lm", "tokyo-0")
    await clusters.add_part()
    assert (await clusters.diloco("logs", "bytes-lm", "tokyo-0", "--tail", "1")).stdout == "bytes-lm tokyo-0 trains\n"
    await clusters.add_part("far", "copy")
    assert "bytes-lm and copy in namespace far there are both this part; delete one" in await clusters.refused(
        "logs", "bytes-lm", "tokyo-0"
    )
    assert clusters.tokyo.changes == []


async def test_a_part_that_cannot_be_read_is_an_error_in_words(clusters: TwoClusters) -> None:
    await clusters.job_with_made_part()
    await clusters.add_part()
    clusters.tokyo.distort = lambda obj: {**obj, "status": {"units": [{"name": "tokyo-0", "attempt": -1}]}}
    said = await clusters.refused("drain", "bytes-lm", "tokyo-0")
    assert ", context tokyo has an object that cannot be read: units[0]" in said


async def test_a_unit_that_the_part_does_not_have_is_told_by_the_part(clusters: TwoClusters) -> None:
    await clusters.job_with_made_part()
    await clusters.add_part()
    assert 'job "bytes-lm" has no unit "tokyo-7"; its units are: tokyo-0, tokyo-1' in await clusters.refused("drain", "bytes-lm", "tokyo-7")
    said = await clusters.refused("drain", "bytes-lm", "osaka-0")
    assert said == 'Error: job "bytes-lm" has no unit "osaka-0"; its units are: v5p-0\n'


# --- drain and explain --------------------------------------------------------------------------------------------------
async def test_drain_waits_until_the_unit_contributes_again_there(clusters: TwoClusters) -> None:
    await clusters.job_with_made_part()
    await clusters.add_part()
    tokyo = clusters.tokyo
    draining = asyncio.create_task(clusters.diloco("drain", "bytes-lm", "tokyo-0", "--cordon"))
    evicted = "POST /api/v1/namespaces/far/pods/bytes-lm-tokyo-0-a1-0/eviction"
    await until(lambda: evicted in tokyo.changes)
    assert not draining.done()
    again = unit("tokyo-0", attempt=2, slice="np-2", recoverSeconds=7.5)
    await set_status(tokyo, "far", "bytes-lm", units=[again, unit("tokyo-1")])
    result = await draining
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == "node/tpu-0 cordoned; undo it with `kubectl uncordon tpu-0 --context tokyo`"
    assert result.stdout.splitlines()[-1] == ("unit tokyo-0 contributes again after 7.5 s, on np-2; failures on its restart budget: 0")
    assert tokyo.changes == ["PATCH /api/v1/nodes/tpu-0", evicted]
    assert clusters.home.changes == []


async def test_explain_of_a_unit_tells_what_its_own_cluster_knows_of_it(clusters: TwoClusters) -> None:
    await clusters.job_with_made_part()
    crashed = unit(
        "tokyo-1", "BackingOff", 3, reason="Crashed", message="exit 1; starts again", failedAttempt=3, lastFailure="Crashed: exit 1"
    )
    await clusters.add_part("far", "bytes-lm", unit("tokyo-0"), crashed)
    said = {"conditions": conditions(Training="True"), "state": "Degraded", "reason": "LearnersFailed"}
    pools = [{"name": "tokyo", "placed": 2, "contributing": 1}, {"name": "other"}]
    await set_status(clusters.tokyo, "far", "bytes-lm", **said, pools=pools, learners={"desired": 2, "contributing": 1})
    result = await clusters.diloco("explain", "bytes-lm", "tokyo-1")
    assert result.stderr == "unit tokyo-1 runs in cluster tokyo: job bytes-lm in namespace far there\n"
    lines = result.stdout.splitlines()
    assert lines[0] == "bytes-lm in namespace far is Degraded (LearnersFailed): 1 of 2 units contribute; unit tokyo-1 does not train"
    assert [line for line in lines if line.startswith(("POOL", "UNIT", "  its log"))] == [
        "POOL tokyo (tpu-v5p 2x2x1): 2 placed of at most 4, 1 contributing",
        "UNIT tokyo-1: BackingOff, Crashed",
        "  its log         kubectl diloco logs bytes-lm tokyo-1 -n far --context tokyo",
    ]


async def test_explain_of_a_unit_tells_also_of_one_that_trains(clusters: TwoClusters) -> None:
    await clusters.begin()
    waits = unit("v5p-1", "Pending", 0, reason="NoCapacity")
    hosts = [{"node": node, "message": "crashed", "avoidedUntil": SINCE, "failures": [{"unit": name, "attempt": 1, "at": SINCE}]}
             for node, name in (("tpu-0", "v5p-0"), ("tpu-1", "v5p-1"))]  # fmt: skip
    said = {"conditions": conditions(Training="True"), "state": "Training", "learners": {"desired": 2, "contributing": 1}}
    await set_status(clusters.home, "team", "bytes-lm", **said, units=[unit(slice="np-0", restarts=1), waits], hosts=hosts)
    told = (await clusters.diloco("explain", "bytes-lm", "v5p-0")).stdout
    assert "\nUNIT v5p-0: Training, on np-0\n" in told
    assert "  restarts        1 so far\n" in told
    assert "v5p-1" not in told
    assert [line.split()[0] for line in told.splitlines() if "avoided until" in line] == ["tpu-0"]
    assert 'job "bytes-lm" has no unit "v5p-9"' in await clusters.refused("explain", "bytes-lm", "v5p-9")
