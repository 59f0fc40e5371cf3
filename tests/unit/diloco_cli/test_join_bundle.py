"""`kubectl diloco join-bundle`: the files of a learner outside the cluster."""

from __future__ import annotations

import base64
import json
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest
from builders.cluster_scenes import on_a_cluster, owner_of
from builders.fake_cluster import FakeCluster
from builders.jobs import Obj, a_job
from diloco import contract
from diloco_cli.cluster import CommandError
from diloco_cli.kubectl.join_bundle import read_bundle
from diloco_cli.kubectl.join_files import write_files
from diloco_operator.api import names
from diloco_operator.api.crd import build_crd
from diloco_operator.certificates.authority import Leaf
from diloco_operator.certificates.issuing import Issuer

NOW = 1_795_208_460.0
JOB_FILE = json.dumps({"name": "bytes-lm", "namespace": "team", "uid": "u", "training": {"steps": 10}})


async def a_job_with(cluster: FakeCluster, outside: Sequence[str], syncer: Obj, *, secret: bool = True) -> Obj:
    """The job `bytes-lm` with learners outside, and what an operator has made for it."""
    api = cluster.api
    await api.create(names.CUSTOM_RESOURCES, build_crd())
    await api.create(names.NAMESPACES, {"metadata": {"name": "team"}})
    wanted = a_job().with_learners(1, 1, outside=list(outside)).with_pool().with_spec(syncer=syncer).build()
    job = await api.create(names.DILOCO_JOBS, wanted)
    await api.create(names.CONFIG_MAPS, {"metadata": made_for(job, "bytes-lm-job"), "data": {contract.JOB_FILE_KEY: JOB_FILE}})
    if secret:
        issuer = Issuer(lambda: NOW, 3600.0)
        authority = issuer.authority("u")
        pems = {names.outside_key(name): issuer.sign(authority, Leaf("", contract.learner_identity("u", name, 1))) for name in outside}
        data = {key: base64.b64encode(text.encode()).decode() for key, text in {**pems, "ca.crt": authority.root.pem}.items()}
        await api.create(names.SECRETS, {"metadata": made_for(job, "bytes-lm-outside-tls"), "data": data})
    return job


def made_for(job: Obj, name: str) -> Obj:
    return {"name": name, "namespace": "team", "ownerReferences": [owner_of(job)]}


@on_a_cluster
async def test_a_bundle_has_the_job_file_the_certificate_and_the_address(cluster: FakeCluster) -> None:
    await a_job_with(cluster, ["lab", "tokyo"], {"externalAddress": "syncer.example.com:443"})
    files, address, good_until = await read_bundle(cluster.api, "team", "bytes-lm", "lab", "", seconds=1.0)
    assert sorted(files) == ["bundle.json", "ca.crt", "identity.pem", "job.json"]
    assert files["job.json"][0].decode() == JOB_FILE
    assert json.loads(files["bundle.json"][0]) == {"unit": "lab", "attempt": 1, "syncer": "syncer.example.com:443"}
    assert b"PRIVATE KEY" in files["identity.pem"][0]
    assert (str(address), good_until) == ("syncer.example.com:443", NOW + 3600.0)


@on_a_cluster
async def test_a_given_address_wins(cluster: FakeCluster) -> None:
    await a_job_with(cluster, ["lab"], {"externalAddress": "syncer.example.com"})
    _, address, _ = await read_bundle(cluster.api, "team", "bytes-lm", "lab", "10.1.2.3", seconds=1.0)
    assert str(address) == "10.1.2.3:7077"
    with pytest.raises(CommandError, match=r"'10.1.2.3:x' is no address"):
        await read_bundle(cluster.api, "team", "bytes-lm", "lab", "10.1.2.3:x", seconds=1.0)


@on_a_cluster
async def test_the_address_of_a_load_balancer_is_awaited(cluster: FakeCluster) -> None:
    job = await a_job_with(cluster, ["lab"], {"loadBalancer": {}})
    spec = {"type": "LoadBalancer", "ports": [{"port": 7077}]}
    await cluster.api.create(names.SERVICES, {"metadata": made_for(job, "bytes-lm-syncer-external"), "spec": spec})
    with pytest.raises(CommandError, match=r"Service bytes-lm-syncer-external lacks what the operator or the cluster has to add after 1 s"):
        await read_bundle(cluster.api, "team", "bytes-lm", "lab", "", seconds=1.0)
    status = {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}
    await cluster.write_status(names.SERVICES, "bytes-lm-syncer-external", status, namespace="team")
    _, address, _ = await read_bundle(cluster.api, "team", "bytes-lm", "lab", "", seconds=1.0)
    assert str(address) == "203.0.113.7:7077"


@on_a_cluster
async def test_what_is_missing_is_told_with_what_to_do(cluster: FakeCluster) -> None:
    await a_job_with(cluster, ["lab"], {}, secret=False)
    with pytest.raises(CommandError, match=r'has no learner "osaka" in spec.learners.outside; it has: lab'):
        await read_bundle(cluster.api, "team", "bytes-lm", "osaka", "", seconds=1.0)
    with pytest.raises(CommandError, match=r"Secret bytes-lm-outside-tls does not exist after 1 s"):
        await read_bundle(cluster.api, "team", "bytes-lm", "lab", "", seconds=1.0)


@on_a_cluster
async def test_what_an_earlier_job_of_the_name_left_is_in_no_bundle(cluster: FakeCluster) -> None:
    job = await a_job_with(cluster, ["lab"], {"externalAddress": "syncer.example.com"}, secret=False)
    owner = {**owner_of(job), "uid": "of-an-earlier-job"}
    left: Obj = {"name": "bytes-lm-outside-tls", "namespace": "team", "ownerReferences": [owner], "finalizers": ["example.com/stays"]}
    await cluster.api.create(names.SECRETS, {"metadata": left, "data": {"lab-a1.pem": "bm9uZQ=="}})
    with pytest.raises(CommandError, match="Secret bytes-lm-outside-tls belongs to another object after 1 s; kubectl diloco doctor says"):
        await read_bundle(cluster.api, "team", "bytes-lm", "lab", "", seconds=1.0)


@on_a_cluster
async def test_a_job_that_nobody_outside_can_reach_is_told(cluster: FakeCluster) -> None:
    await a_job_with(cluster, ["lab"], {})
    with pytest.raises(CommandError, match=r"set spec.syncer.externalAddress or spec.syncer.loadBalancer, or give --address"):
        await read_bundle(cluster.api, "team", "bytes-lm", "lab", "", seconds=1.0)


def test_a_bundle_is_for_its_owner_and_is_replaced_by_a_renewed_one(tmp_path: Path) -> None:
    folder = tmp_path / "lm-lab"
    write_files(folder, {"identity.pem": (b"first", 0o600)})
    write_files(folder, {"identity.pem": (b"second", 0o600)})
    assert (folder / "identity.pem").read_bytes() == b"second"
    assert stat.S_IMODE((folder / "identity.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [each.name for each in folder.iterdir()] == ["identity.pem"]
