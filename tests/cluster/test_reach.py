"""`kubectl diloco doctor JOB` connects from a learner's pod to the syncer: its program runs as a process of the pod, for real.

See docs/decisions/0176-explain-and-doctor.md.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from builders.control_plane import ControlPlane
from builders.jobs import template
from builders.kube_jobs import kube_cluster, operator
from builders.local import has_phase, is_true, wait_for
from builders.local_jobs import a_fleet, a_quadratic_job
from diloco_operator.api.names import PODS

type Obj = dict[str, Any]

pytestmark = [pytest.mark.timeout(1200), pytest.mark.xdist_group("many-learners")]

LEARNER = "quad-v5p-0-a1-0"
DEAF = ["sleep", "1000"]
"""A program that serves nothing."""


async def said_of_the_syncer(plane: ControlPlane) -> tuple[int, str, str]:
    """The doctor's exit status, and level and message of the check."""
    done = await asyncio.to_thread(plane.kubectl, "diloco", "doctor", "quad", "-o", "json", check=False)
    [found] = [each for each in json.loads(done.stdout)["findings"] if each["check"] == "syncer"]
    return done.returncode, found["level"], found["message"]


def is_deaf(pod: Obj | None) -> bool:
    return has_phase("Running")(pod) and pod is not None and pod["spec"]["containers"][0]["command"] == DEAF


async def test_the_doctor_finds_whether_a_learners_pod_reaches_the_syncer(jobs_plane: ControlPlane, tmp_path: Path) -> None:
    address = "quad-syncer.quad.default.svc:7077"
    async with kube_cluster(jobs_plane, tmp_path, a_fleet(tpus=1, gpus=0)) as cluster:
        with operator(jobs_plane, tmp_path):
            await cluster.apply(a_quadratic_job(units={"v5p": 1}, steps=1_000_000, environment={"QUADRATIC_STEP_MS": 50}))
            await cluster.job("quad", is_true("Training"))
            assert await said_of_the_syncer(jobs_plane) == (0, "ok", f"pod {LEARNER} reaches it at {address}")

            await cluster.change("quad", {"syncer": {"template": template("syncer", command=DEAF)}})
            await wait_for(cluster.client, PODS, "default", "quad-syncer", is_deaf)
            status, level, message = await said_of_the_syncer(jobs_plane)
            assert (status, level) == (1, "error")
            assert message.startswith(f"pod {LEARNER} does not reach it at {address}: ConnectionRefusedError"), message
