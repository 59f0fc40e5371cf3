"""`python -m benchmarks.kube.bare_client KUBECONFIG PODS.json`: POST every pod of the file, and print how many seconds that took."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from functools import partial
from pathlib import Path

from diloco_operator.api import names
from diloco_operator.kube.client import Obj
from diloco_operator.kube.rest import RestClient, load_config

from benchmarks.kube.rig import side_by_side


async def main(kubeconfig: str, pods: list[Obj]) -> float:
    async with RestClient.connect(load_config(kubeconfig)) as client:
        await client.list(names.NODES, limit=1)  # connects before the clock starts: the operator is connected too
        begun = time.perf_counter()
        await side_by_side([partial(client.create, names.PODS, pod) for pod in pods])
        return time.perf_counter() - begun


if __name__ == "__main__":
    sys.stdout.write(f"{asyncio.run(main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()))):.6f}\n")
