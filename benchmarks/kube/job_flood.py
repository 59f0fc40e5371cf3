"""`python -m benchmarks.kube.job_flood KUBECONFIG NAMESPACE JOBS`: a tenant that creates jobs as fast as the API server takes them.

The jobs wait for hardware that does not exist. The process has the lowest priority: in a real cluster it would run on a machine of its own.
It prints how many seconds it took.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from functools import partial

from builders.jobs import JobBuilder
from diloco_operator.api import names
from diloco_operator.kube.client import Obj
from diloco_operator.kube.rest import RestClient, load_config

from benchmarks.kube.rig import side_by_side


def waiting_job(namespace: str, number: int) -> Obj:
    """A job for hardware that does not exist."""
    made = JobBuilder(f"flood-{number}").in_namespace(namespace).with_learners(1, 1)
    return made.with_pool("v5p", accelerator="tpu-v5p", topology="2x2x1", max=1).build()


async def flood(kubeconfig: str, namespace: str, jobs: int) -> float:
    """Create the jobs, and return the seconds that it took."""
    async with RestClient.connect(load_config(kubeconfig)) as client:
        creates = [partial(client.create, names.DILOCO_JOBS, waiting_job(namespace, number)) for number in range(jobs)]
        begun = time.monotonic()
        await side_by_side(creates)
        return time.monotonic() - begun


if __name__ == "__main__":
    os.nice(19)
    sys.stdout.write(f"{asyncio.run(flood(sys.argv[1], sys.argv[2], int(sys.argv[3]))):.3f}\n")
