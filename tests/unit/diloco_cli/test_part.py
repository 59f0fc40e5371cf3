"""`kubectl diloco part`: the manifest and the Secret for another cluster."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import yaml
from builders.cluster_scenes import on_a_cluster
from builders.fake_cluster import FakeCluster
from builders.jobs import Obj, a_job
from diloco import contract
from diloco_cli.cluster import CommandError
from diloco_cli.kubectl.part import declare_part, manifest_of, read_secret
from diloco_cli.pool_option import PoolRequest, read_pool
from diloco_cli.yaml_text import yaml_text
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
    """The job `bytes-lm`, and what an operator has made for its part: certificates for the first attempts of so many units."""
    api = cluster.api
    await api.create(names.CUSTOM_RESOURCES, build_crd())
    await api.create(names.NAMESPACES, {"metadata": {"name": "team"}})
    await api.create(names.DILOCO_JOBS, a_job().with_learners(1, 1).with_pool().with_spec(**({"parts": parts} if parts else {})).build())
    config = {"metadata": {"name": "bytes-lm-job", "namespace": "team"}, "data": {contract.JOB_FILE_KEY: JOB_FILE}}
    await api.create(names.CONFIG_MAPS, config)
    issuer = Issuer(lambda: NOW, 3600.0)
    authority = issuer.authority("u")
    leaves = [Leaf(names.PART_IDENTITY, contract.part_identity("u", "tokyo"))]
    leaves += [Leaf(f"tokyo-{unit}-a1.pem", contract.learner_identity("u", f"tokyo-{unit}", 1)) for unit in range(signed)]
    files = {**issuer.sign_all(authority, tuple(leaves)), "ca.crt": authority.root.pem}
    data = {key: base64.b64encode(text.encode()).decode() for key, text in files.items()}
    await api.create(names.SECRETS, {"metadata": {"name": "bytes-lm-part-tokyo-tls", "namespace": "team"}, "data": data})


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
