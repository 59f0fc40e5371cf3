"""`python -m benchmarks.kube.fail_pods KUBECONFIG NAMESPACE NAMES.txt`: mark these learner pods Failed, as fast as it goes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from diloco_operator.api import names
from diloco_operator.kube.client import Obj, PatchType
from diloco_operator.kube.rest import RestClient, load_config

from benchmarks.kube.rig import side_by_side


async def main(kubeconfig: str, namespace: str, pods: list[str]) -> None:
    ended = {"exitCode": 1, "reason": "Error", "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z"}
    container = {
        "name": names.LEARNER_CONTAINER,
        "image": "registry.example/train:1",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": ended},
    }
    status: Obj = {"status": {"phase": "Failed", "containerStatuses": [container]}}
    async with RestClient.connect(load_config(kubeconfig)) as client:
        await side_by_side(
            [lambda pod=pod: client.patch(names.PODS, namespace, pod, status, type=PatchType.MERGE, subresource="status") for pod in pods]
        )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3], Path(sys.argv[3]).read_text().split()))
