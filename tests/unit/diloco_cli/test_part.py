"""`kubectl diloco part`: the manifest and the Secret for another cluster."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.cluster_scenes import Limited, on_a_cluster, owner_of
from builders.documents import ROOT
from builders.fake_cluster import FakeCluster
from builders.jobs import Obj, a_job, gpu_pool, tpu_pool
from diloco import contract
from diloco_cli.cluster import CommandError
from diloco_cli.kubectl.part import declare_part, read_secret, write_part
from diloco_cli.kubectl.part_file import manifest_of, read_pools, updated
from diloco_cli.pool_option import PoolRequest, read_pool
from diloco_cli.yaml_text import yaml_text
from diloco_local.memory import MemoryApi
from diloco_operator.api import names
from diloco_operator.api.crd import build_crd
from diloco_operator.api.rules import MAX_PART_UNITS, MAX_POOL_NAME
from diloco_operator.certificates.authority import Leaf
from diloco_operator.certificates.issuing import Issuer
from diloco_operator.reconcile.children.parts import ATTEMPTS
from diloco_operator.reconcile.observe.part_secret import project_part_secret

NOW = 1_795_208_460.0
TRAINING = {"steps": 10, "syncInterval": 24}
JOB_FILE = json.dumps({"name": "bytes-lm", "namespace": "team", "uid": "u", "training": TRAINING})
PARTS = [{"name": "tokyo", "pools": [{"name": "tokyo", "units": 2}]}]
AT = {"address": "syncer.example.com:7077", "secretName": "bytes-lm-home"}


async def a_job_in(cluster: FakeCluster, *, parts: list[Obj] | None = None, signed: int = 2) -> None:
    """Make the job `bytes-lm`, and what an operator has made for its part. `signed`: units with a certificate for their first attempt."""
    api = cluster.api
    await api.create(names.CUSTOM_RESOURCES, build_crd())
    await api.create(names.NAMESPACES, {"metadata": {"name": "team"}})
    wanted = a_job().with_learners(1, 1).with_pool().with_spec(**({"parts": parts} if parts else {})).build()
    meta = {"namespace": "team", "ownerReferences": [owner_of(await api.create(names.DILOCO_JOBS, wanted))]}
    config = {"metadata": {**meta, "name": "bytes-lm-job"}, "data": {contract.JOB_FILE_KEY: JOB_FILE}}
    await api.create(names.CONFIG_MAPS, config)
    issuer = Issuer(lambda: NOW, 3600.0)
    authority = issuer.authority("u")
    leaves = [Leaf(names.PART_IDENTITY, contract.part_identity("u", "tokyo"))]
    leaves += [Leaf(f"tokyo-{unit}-a1.pem", contract.learner_identity("u", f"tokyo-{unit}", 1)) for unit in range(signed)]
    files = {**issuer.sign_all(authority, tuple(leaves)), "ca.crt": authority.root.pem}
    data = {key: base64.b64encode(text.encode()).decode() for key, text in files.items()}
    await api.create(names.SECRETS, {"metadata": {**meta, "name": "bytes-lm-part-tokyo-tls"}, "data": data})


def pools_of(*texts: str) -> list[PoolRequest]:
    return [read_pool(text, None) for text in texts]


def stored(secret: Obj) -> Obj:
    """The Secret as an API server stores it."""
    assert "stringData" not in secret, "a server-side apply would not own what comes of it"
    return {"metadata": {**secret["metadata"], "namespace": "far"}, "data": secret["data"]}


@on_a_cluster
async def test_the_secret_is_what_an_operator_of_a_part_can_use(cluster: FakeCluster) -> None:
    await a_job_in(cluster, parts=PARTS)
    secret, good_until = await read_secret(cluster.api, "team", "bytes-lm", "tokyo", seconds=1.0)
    assert good_until == NOW + 3600.0
    assert secret["metadata"] == {"name": "bytes-lm-home", "labels": {"diloco.dev/job": "bytes-lm"}}
    found = project_part_secret(stored(yaml.safe_load(yaml_text([secret]))))
    assert found is not None
    assert found.home is not None, found.problem
    assert (found.home.part, found.home.job.name, found.home.job.training.sync_interval) == ("tokyo", "bytes-lm", 24)
    assert found.home.signed == {"tokyo-0": {1}, "tokyo-1": {1}}


def test_the_secret_of_the_largest_part_is_one_that_an_api_server_takes() -> None:
    """A Secret has at most 1 MiB. The annotation of a client-side apply has 256 KiB, so the files need a server-side one."""
    uid, name = "0f8fad5b-d9cb-469f-a165-70867728950e", "p" * MAX_POOL_NAME
    issuer = Issuer(lambda: NOW, 3600.0)
    authority = issuer.authority(uid)
    one = Leaf(f"{name}-31-a1000.pem", contract.learner_identity(uid, f"{name}-31", 1000), (f"{name}-31-1000.learner.{'n' * 63}.svc",))
    [pem] = issuer.sign_all(authority, (one,)).values()
    attempts = MAX_PART_UNITS * ATTEMPTS
    assert attempts * (len(pem) + len(one.key)) + 2 * len(pem) + len(authority.root.pem) + len(JOB_FILE) < 2**20


@on_a_cluster
async def test_it_waits_until_every_unit_has_its_certificates(cluster: FakeCluster) -> None:
    await a_job_in(cluster, parts=PARTS, signed=1)
    with pytest.raises(CommandError, match="Secret bytes-lm-part-tokyo-tls lacks what the operator or the cluster has to add after 1 s"):
        await read_secret(cluster.api, "team", "bytes-lm", "tokyo", seconds=1.0)


@on_a_cluster
async def test_a_part_that_the_job_does_not_have_is_told_with_what_to_do(cluster: FakeCluster) -> None:
    await a_job_in(cluster)
    with pytest.raises(CommandError, match=r'job "bytes-lm" has no part "tokyo" in spec.parts; give its pools by --pool KIND=UNITS'):
        await read_secret(cluster.api, "team", "bytes-lm", "tokyo", seconds=1.0)


@on_a_cluster
async def test_a_part_is_added_once_and_its_pools_follow_the_options(cluster: FakeCluster) -> None:
    await a_job_in(cluster)

    async def parts() -> Any:
        return (await cluster.api.get(names.DILOCO_JOBS, "team", "bytes-lm"))["spec"].get("parts")

    await declare_part(cluster.api, "team", "bytes-lm", "tokyo", pools_of("v6e=2x2x2,name=tokyo"))
    assert await parts() == PARTS
    await declare_part(cluster.api, "team", "bytes-lm", "tokyo", pools_of("v6e=2x2x2,name=tokyo"))
    assert await parts() == PARTS
    await declare_part(cluster.api, "team", "bytes-lm", "osaka", pools_of("h100=1,name=osaka-h100"))
    await declare_part(cluster.api, "team", "bytes-lm", "tokyo", pools_of("v6e=4x2x2,name=tokyo"))
    assert [(each["name"], each["pools"][0]["units"]) for each in await parts()] == [("tokyo", 4), ("osaka", 1)]
    with pytest.raises(CommandError, match=r"cannot get the part kobe: .*a pool is in one cluster"):
        await declare_part(cluster.api, "team", "bytes-lm", "kobe", pools_of("v6e=4x2x2,name=tokyo"))


class Interrupted(Limited):
    """A client of a job whose status is written right before each of the first writes, `times` of them."""

    def __init__(self, cluster: FakeCluster, times: int) -> None:
        super().__init__(cluster.api)
        self._cluster, self._left = cluster, times

    async def patch(self, *what: Any, **how: Any) -> Obj:
        if self._left:
            self._left -= 1
            await self._cluster.write_status(names.DILOCO_JOBS, "bytes-lm", {"progress": {"step": self._left}}, namespace="team")
        patched: Obj = await self._api.patch(*what, **how)
        return patched


@on_a_cluster
async def test_a_part_is_added_although_the_status_is_written_meanwhile(cluster: FakeCluster) -> None:
    await a_job_in(cluster)
    with pytest.raises(CommandError, match=r'job "bytes-lm" is being changed all the time; run the command again'):
        await declare_part(Interrupted(cluster, 10), "team", "bytes-lm", "tokyo", pools_of("v6e=2x2x2,name=tokyo"))
    await declare_part(Interrupted(cluster, 9), "team", "bytes-lm", "tokyo", pools_of("v6e=2x2x2,name=tokyo"))
    assert (await cluster.api.get(names.DILOCO_JOBS, "team", "bytes-lm"))["spec"]["parts"] == PARTS


@on_a_cluster
async def test_the_manifest_is_a_job_that_an_api_server_takes(cluster: FakeCluster) -> None:
    await a_job_in(cluster)
    home = a_job().with_learners(1, 1, stallTimeout="60s").with_pool().build()
    manifest = yaml.safe_load(yaml_text([manifest_of(home, TRAINING, pools_of("v6e=2x2x2,name=tokyo"), AT, "")]))
    manifest["metadata"]["namespace"] = "far"
    await cluster.api.create(names.NAMESPACES, {"metadata": {"name": "far"}})
    spec = (await cluster.api.create(names.DILOCO_JOBS, manifest))["spec"]
    assert spec["syncer"]["at"] == {**AT, "partTimeout": "1h"}
    assert (spec["training"]["syncInterval"], spec["learners"]["stallTimeout"]) == (24, "60s")
    assert spec["pools"][0]["template"]["spec"] == home["spec"]["pools"][0]["template"]["spec"]


def test_the_template_is_of_a_pool_of_the_same_hardware_or_of_the_named_one() -> None:
    home = a_job().with_pool("v5p").with_gpu_pool("h100").build()
    home["spec"]["pools"][1]["template"] = {"spec": {"containers": [{"name": "learner", "image": "cuda"}]}}
    [pool] = pools_of("h100=1")
    images = [
        manifest_of(home, TRAINING, [pool], AT, named)["spec"]["pools"][0]["template"]["spec"]["containers"][0]["image"]
        for named in ("", "v5p")
    ]
    assert images == ["cuda", "registry.example/train:1"]
    with pytest.raises(CommandError, match="the job has no pool b200; its pools are v5p, h100"):
        manifest_of(home, TRAINING, [pool], AT, "b200")


# --- pools by the options and the job at home ---------------------------------------------------------------------------
def a_home(*pools: Obj) -> Obj:
    return a_job().with_pools(*pools).build()


def entries(home: Obj, *texts: str, template: str = "") -> list[Obj]:
    """The pools of the part that --pool gives, without what is the same in all of them."""
    made = manifest_of(home, TRAINING, read_pools(texts, home, "tokyo"), AT, template)["spec"]["pools"]
    return [{key: value for key, value in pool.items() if key not in ("name", "learners", "template")} for pool in made]


def test_a_pool_of_the_same_hardware_runs_its_program_as_home_does() -> None:
    [llama] = yaml.safe_load_all((ROOT / "examples" / "llama.yaml").read_text())
    assert entries(llama, "h100=2") == [{"accelerator": "nvidia-h100-80gb", "hosts": 1, "processesPerHost": 8}]
    of_program: Obj = {"acceleratorsPerHost": 4, "processesPerHost": 2, "hosts": 3, "sharedMemory": "8Gi", "locality": "Block"}
    of_cluster: Obj = {"capacity": "Spot", "spares": 1, "provisioning": {"mode": "Autoscaler"}, "cluster": "osaka"}
    home = a_home(tpu_pool(), gpu_pool(**of_program, **of_cluster), gpu_pool("b"))
    assert entries(home, "h100=2") == [{"accelerator": "nvidia-h100-80gb", **of_program}]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("h100=2x4", {"acceleratorsPerHost": 4, "processesPerHost": 2, "hosts": 3}),
        ("h100=2x8", {"acceleratorsPerHost": 8, "processesPerHost": 8, "hosts": 3}),
        ("h100=2,hosts=1", {"acceleratorsPerHost": 4, "processesPerHost": 2, "hosts": 1}),
        ("h100=2,spot", {"acceleratorsPerHost": 4, "processesPerHost": 2, "hosts": 3, "capacity": "Spot"}),
    ],
)
def test_what_the_option_says_wins_and_other_numbers_of_accelerators_have_a_process_each(text: str, fields: Obj) -> None:
    home = a_home(gpu_pool(acceleratorsPerHost=4, processesPerHost=2, hosts=3))
    assert entries(home, text) == [{"accelerator": "nvidia-h100-80gb", **fields}]


def test_one_process_for_all_accelerators_of_a_host_at_home_is_one_in_the_part() -> None:
    assert entries(a_home(gpu_pool()), "h100=2") == [{"accelerator": "nvidia-h100-80gb"}]


def test_hardware_that_home_does_not_have_gets_a_process_for_each_gpu() -> None:
    home = a_home(tpu_pool())
    assert entries(home, "b200=2", "l4=1x1") == [
        {"accelerator": "nvidia-b200", "processesPerHost": 8},
        {"accelerator": "nvidia-l4", "acceleratorsPerHost": 1},
    ]
    assert entries(home, "v6e=1x2x2") == [{"accelerator": "tpu-v6e", "topology": "2x2"}]


def test_a_named_template_of_the_same_hardware_has_the_processes_too() -> None:
    home = a_home(gpu_pool("a", processesPerHost=8), gpu_pool("b", processesPerHost=4), tpu_pool("c"))
    processes = [entries(home, "h100=1", template=named)[0]["processesPerHost"] for named in ("", "b", "c")]
    assert processes == [8, 4, 8]


def test_what_the_option_leaves_open_the_pools_of_home_decide() -> None:
    mega = gpu_pool("mega", accelerator="nvidia-h100-mega-80gb", processesPerHost=8)
    v6e = tpu_pool("v6e", accelerator="tpu-v6e", topology="2x4", chipsPerHost=8)
    found = entries(a_home(mega, v6e), "h100=2", "v6e=2")
    assert found == [
        {"accelerator": "nvidia-h100-mega-80gb", "processesPerHost": 8},
        {"accelerator": "tpu-v6e", "topology": "2x4", "chipsPerHost": 8},
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h100=2", r"h100 may be .*, and the job has none of them; write one of these"),
        ("v6e=2", r"tpu-v6e comes in slices, and the job has no slices of tpu-v6e; write the topology, such as v6e=1x"),
        ("v5p=2", r"the job has slices of 2x2x1 and 2x2x2; write the topology"),
        ("v6e=2x2x4", r"have . or . chips, and the job has none of these; write which behind it, such as chips=4"),
    ],
)
def test_what_the_pools_of_home_do_not_decide_is_refused_with_what_to_write(text: str, message: str) -> None:
    home = a_home(tpu_pool(), tpu_pool("b", topology="2x2x1"))
    with pytest.raises(CommandError, match=message):
        read_pools([text], home, "tokyo")


# --- a file that is there -----------------------------------------------------------------------------------------------
def edited(manifest: Obj) -> Obj:
    """What a user changes for the other cluster."""
    spec = manifest["spec"]
    [pool] = spec["pools"]
    pod = {"spec": {"containers": [{"name": "learner", "image": "mirror.tokyo/train:1"}], "tolerations": [{"operator": "Exists"}]}}
    mine = {**pool, "template": pod, "capacity": "Spot", "learners": {**pool["learners"], "min": 1}}
    at = {**spec["syncer"]["at"], "partTimeout": "2h"}
    syncer = {**spec["syncer"], "at": at}
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": "far"}, "spec": {**spec, "pools": [mine], "syncer": syncer}}


def test_a_file_keeps_all_but_the_training_the_address_and_the_numbers() -> None:
    home = a_home(tpu_pool("v6e", accelerator="tpu-v6e", topology="2x2"))
    there = edited(manifest_of(home, TRAINING, pools_of("v6e=2x2x2,name=tokyo"), AT, ""))
    moved = {**AT, "address": "elsewhere.example.com:7077"}
    fresh = manifest_of(home, {**TRAINING, "syncInterval": 48}, pools_of("v6e=3x2x2,name=tokyo"), moved, "")
    found = updated(there, fresh)
    spec = found["spec"]
    assert spec["training"]["syncInterval"] == 48
    assert spec["syncer"]["at"] == {**moved, "partTimeout": "2h"}
    assert (spec["learners"]["max"], spec["pools"][0]["learners"]) == (3, {"min": 1, "max": 3})
    changed_back = {**spec, **{key: there["spec"][key] for key in ("training", "syncer", "learners")}}
    changed_back["pools"] = [{**spec["pools"][0], "learners": there["spec"]["pools"][0]["learners"]}]
    assert {**found, "spec": changed_back} == there


def test_pools_are_added_to_a_file_and_those_that_are_not_wanted_leave_it() -> None:
    home = a_home(tpu_pool("v6e", accelerator="tpu-v6e", topology="2x2"))
    there = edited(manifest_of(home, TRAINING, pools_of("v6e=2x2x2,name=a"), AT, ""))
    both = updated(there, manifest_of(home, TRAINING, pools_of("v6e=2x2x2,name=a", "b200=1,name=b"), AT, ""))
    assert [(pool["name"], pool.get("capacity")) for pool in both["spec"]["pools"]] == [("a", "Spot"), ("b", None)]
    assert [pool["name"] for pool in updated(both, manifest_of(home, TRAINING, pools_of("b200=1,name=b"), AT, ""))["spec"]["pools"]] == [
        "b"
    ]


async def write(cluster: FakeCluster, folder: Path, *pools: str) -> None:
    await write_part(cluster.api, "team", "bytes-lm", "tokyo", pools, template="", folder=folder, address=AT["address"], seconds=1.0)


def test_the_command_run_again_keeps_the_edits_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, cluster = tmp_path / "job.yaml", FakeCluster(MemoryApi())

    async def run(*pools: str) -> None:
        if not file.exists():
            await a_job_in(cluster, parts=PARTS)
        await write(cluster, tmp_path, *pools)

    asyncio.run(run("v6e=2x2x2"))
    assert "kept" not in capsys.readouterr().out
    file.write_text(f"# for tokyo\n{yaml_text([edited(yaml.safe_load(file.read_text()))])}")
    asyncio.run(run("v6e=2x2x2"))
    assert f"{file} was kept: nothing that home decides has changed" in capsys.readouterr().out
    assert file.read_text().startswith("# for tokyo\n"), "a file in which nothing changes keeps its comments too"
    asyncio.run(run("v6e=1x2x2"))
    said = capsys.readouterr().out
    assert f"{file} was kept: only spec.training, spec.syncer.at, the list of pools and each learners.max are now as home has them" in said
    assert f"in the cluster tokyo: kubectl apply --server-side -f {tmp_path}" in said
    [pool] = yaml.safe_load(file.read_text())["spec"]["pools"]
    assert (pool["learners"]["max"], pool["template"]["spec"]["containers"][0]["image"]) == (1, "mirror.tokyo/train:1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"job.yaml:.*mend it, or give another folder by --output"),
        ("kind: Deployment", r"job.yaml:.*kind: must be DiLoCoJob, not 'Deployment'.*mend it, or give another folder by --output"),
        (yaml_text([a_job("other").with_pool().build()]), r"job.yaml: it has the DiLoCoJob other, not bytes-lm\. .*--output"),
        (yaml_text([a_job().with_pool().build()]), r"job.yaml: its DiLoCoJob has no spec.syncer.at, so it is no part\. .*--output"),
        (
            yaml_text([a_job().with_pool("tokyo").with_spec(syncer={"at": AT}).build()]),
            r"accelerator of its pool tokyo is tpu-v5p, and --pool says tpu-v6e; a pool of other hardware needs another name \(name=NAME\)",
        ),
    ],
    ids=["no YAML", "another kind", "another job", "no part", "other hardware"],
)
def test_a_file_that_is_not_this_part_is_refused_before_the_job_at_home_is_changed(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(text)

    async def refused(cluster: FakeCluster) -> None:
        await a_job_in(cluster)
        with pytest.raises(CommandError, match=message):
            await write(cluster, tmp_path, "v6e=2x2x2")
        assert "parts" not in (await cluster.api.get(names.DILOCO_JOBS, "team", "bytes-lm"))["spec"]

    asyncio.run(refused(FakeCluster(MemoryApi())))
    assert (tmp_path / "job.yaml").read_text() == text
