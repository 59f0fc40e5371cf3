"""`kubectl diloco report`: the pages of a job as one file."""

from __future__ import annotations

import re

from builders.cluster_scenes import NOW, Limited, begin, on_a_cluster, unit
from builders.dashboards import HOSTILE
from builders.fake_cluster import FakeCluster
from builders.pod_logs import Logs
from diloco_cli.kubectl.report import reported
from diloco_operator.api.names import DILOCO_JOBS, EVENTS, PODS


async def with_a_pod(cluster: FakeCluster, message: str = "") -> None:
    """The unit v5p-0 of `bytes-lm` has a pod that runs."""
    await begin(cluster, unit(message=message), unit("v5p-1", "BackingOff", reason="Crashed"))
    uid = (await cluster.api.get(DILOCO_JOBS, "team", "bytes-lm"))["metadata"]["uid"]
    owner = {"apiVersion": "diloco.dev/v1alpha1", "kind": "DiLoCoJob", "name": "bytes-lm", "uid": uid, "controller": True}
    labels = {f"diloco.dev/{key}": value for key, value in {"job": "bytes-lm", "unit": "v5p-0", "attempt": "1", "host": "0"}.items()}
    meta = {"name": "lm-0", "namespace": "team", "labels": {**labels, "diloco.dev/component": "learner"}, "ownerReferences": [owner]}
    spec = {"containers": [{"name": "learner", "image": "trainer:1"}], "nodeName": "tpu-0"}
    await cluster.api.create(PODS, {"metadata": meta, "spec": spec})


@on_a_cluster
async def test_the_file_has_the_job_its_units_and_their_logs_and_needs_nothing_else(cluster: FakeCluster) -> None:
    await with_a_pod(cluster, HOSTILE)
    text = await reported(cluster.api, Logs(lm_0=[b"step 1\n<script>alert(3)</script>\n"]), "team", "bytes-lm", lambda: NOW)
    assert re.findall(r'<article id="([^"]+)"', text) == [
        "/jobs/team/bytes-lm", "/goodput", "/jobs/team/bytes-lm/units/v5p-0", "/jobs/team/bytes-lm/units/v5p-1",
    ]  # fmt: skip
    assert set(re.findall(r'(?:href|src)="([^"]*)"', text)) == {f"#{path}" for path in re.findall(r'<article id="([^"]+)"', text)}
    assert "As the cluster had it at 2026-11-20 21:01:00 UTC." in text
    assert "step 1\n&lt;script&gt;alert(3)&lt;/script&gt;</code></pre>" in text
    assert "<script" not in text
    assert "<img" not in text
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    assert "As it was seen" not in text  # there is one look


@on_a_cluster
async def test_times_are_counted_from_when_the_file_was_made(cluster: FakeCluster) -> None:
    await with_a_pod(cluster)
    text = await reported(cluster.api, None, "team", "bytes-lm", lambda: NOW)
    assert 'datetime="2026-11-20T21:00:00+00:00" title="2026-11-20 21:00:00 UTC">1m00s</time>' in text


@on_a_cluster
async def test_without_logs_hosts_are_shown_and_what_may_not_be_read_is_said(cluster: FakeCluster) -> None:
    await with_a_pod(cluster)
    text = await reported(Limited(cluster.api, EVENTS), None, "team", "bytes-lm", lambda: NOW)
    assert "Hosts and ranks" in text
    assert "Log of host" not in text
    assert "How earlier attempts ended is not shown: events is forbidden" in text
