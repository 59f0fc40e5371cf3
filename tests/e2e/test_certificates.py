"""Certificates of a running job: renewed, lost and replaced, under real processes that connect anew each time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.exploration import full
from builders.local import Cluster, is_true, local_control_plane, wait_for
from builders.local_jobs import a_fleet, a_quadratic_job
from diloco_local.control_plane import LocalTiming
from diloco_operator.api.names import SECRETS
from diloco_operator.certificates.view import CertificateSecret, project_certificates
from diloco_operator.reconcile import OperatorConfig

CA, SYNCER, LEARNERS = "quad-ca", "quad-syncer-tls", "quad-learners-v5p-0"
PROMPT = LocalTiming(volume_sync=0.2)


async def secret(cluster: Cluster, name: str, holds: Callable[[CertificateSecret], bool]) -> CertificateSecret:
    """The Secret once it fulfils `holds`."""
    found = await wait_for(cluster.plane.client, SECRETS, "default", name, lambda obj: obj is not None and holds(project_certificates(obj)))
    assert found is not None
    return project_certificates(found)


def signers(found: CertificateSecret) -> set[str]:
    return {certificate.authority for certificate in found.certificates.values()}


def all_contribute(job: Any) -> bool:
    return bool(((job or {}).get("status") or {}).get("learners", {}).get("contributing") == 2)


def a_long_job() -> dict[str, Any]:
    """More steps than can be made by the time that the certificates have changed, at a pace that leaves the processor to others."""
    return a_quadratic_job(steps=1_000_000, units=dict.fromkeys(("v5p", "h100"), 1), every_steps=4, environment={"QUADRATIC_STEP_MS": 100})


def connected_since(cluster: Cluster) -> set[str]:
    """The units that have joined the syncer since it was restarted."""
    _, *since = cluster.log("quad-syncer").split("goes on from outer step")
    assert len(since) <= 1, "it was restarted once"
    return {unit for text in since for unit in re.findall(r"unit (\S+) joins as attempt 1", text)}


async def complete_after_everybody_connects_anew(cluster: Cluster) -> None:
    """The syncer dies, so all learners and the operator must open new connections; only the syncer is restarted. Then the job is cut
    short."""
    await cluster.kill("quad", "syncer")
    await cluster.job("quad", lambda job: connected_since(cluster) == {"v5p-0", "h100-0"} and all_contribute(job))
    now = (await cluster.job("quad"))["status"]["progress"]
    await cluster.change("quad", {"training": {"steps": now["step"] + 30}})
    job = await cluster.job("quad", is_true("Complete"))
    assert {unit["name"]: unit["attempt"] for unit in job["status"]["units"]} == {"v5p-0": 1, "h100-0": 1}
    trained = re.findall(r"ledger: (\d+) samples", cluster.log("quad-syncer"))
    assert trained
    assert job["status"]["progress"]["tokens"] == 16 * int(trained[-1])  # 16 tokens a sample, none twice, none lost


async def test_a_job_outlives_its_certificates(tmp_path: Path) -> None:
    """They live for 9 s and are renewed after 6."""
    config = OperatorConfig(progress_interval=0.2, certificate_lifetime=9.0, secret_propagation=1.0)
    async with local_control_plane(tmp_path, a_fleet(), config=config, timing=PROMPT) as cluster:
        await cluster.apply(a_long_job())
        first = [await secret(cluster, name, lambda found: bool(found.certificates)) for name in (SYNCER, LEARNERS)]
        await cluster.job("quad", all_contribute)
        end = max(certificate.expires for found in first for certificate in found.certificates.values())
        for name in (SYNCER, LEARNERS):
            await secret(
                cluster, name, lambda found: time.time() > end and all(c.expires > time.time() for c in found.certificates.values())
            )
        await complete_after_everybody_connects_anew(cluster)


@pytest.mark.parametrize(
    "lost", [full((CA,)), full((SYNCER, LEARNERS)), (CA, SYNCER, LEARNERS, "quad-learners-h100-0")], ids=["ca", "leaves", "all"]
)
async def test_a_job_survives_the_loss_of_its_secrets(tmp_path: Path, lost: tuple[str, ...]) -> None:
    config = OperatorConfig(progress_interval=0.2, secret_propagation=1.0)
    async with local_control_plane(tmp_path, a_fleet(), config=config, timing=PROMPT) as cluster:
        await cluster.apply(a_long_job())
        await cluster.job("quad", all_contribute)
        before = await secret(cluster, CA, lambda found: True)
        for name in lost:
            await cluster.plane.client.delete(SECRETS, "default", name)
        authority = await secret(cluster, CA, lambda found: found.uid != before.uid or CA not in lost)
        assert authority.authority is not None
        new = authority.authority.root.id
        for name in (SYNCER, LEARNERS, "quad-learners-h100-0"):
            await secret(cluster, name, lambda found: signers(found) == {new} and [root.id for root in found.roots] == [new])
        await complete_after_everybody_connects_anew(cluster)
