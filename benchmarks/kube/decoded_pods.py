"""`python -m benchmarks.kube.decoded_pods KUBECONFIG NAMESPACE`: list the pods page by page, and keep each as a dict decoded from JSON.

Prints by how many MiB the process has grown, and how many bytes of JSON the pods have.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from diloco_operator.api import names
from diloco_operator.kube.client import Obj
from diloco_operator.kube.reflector import PAGE_SIZE
from diloco_operator.kube.rest import RestClient, load_config


def resident_mib() -> float:
    [line] = [line for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


async def main(kubeconfig: str, namespace: str) -> tuple[float, int]:
    kept: list[Obj] = []
    async with RestClient.connect(load_config(kubeconfig)) as client:
        await client.list(names.PODS, namespace, limit=1)  # connects, and loads all code that a list needs, before memory is measured
        before = resident_mib()
        page = ""
        while True:
            answer = await client.list(names.PODS, namespace, limit=PAGE_SIZE, continue_token=page)
            kept += answer.items
            if not (page := answer.continue_token):
                break
        grown = resident_mib() - before
    return grown, sum(len(json.dumps(pod, separators=(",", ":"))) for pod in kept)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(*sys.argv[1:]))) + "\n")
