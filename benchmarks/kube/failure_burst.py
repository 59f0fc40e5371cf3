"""Makes hundreds of pods fail at once.

If a thousand kubelets report a thousand failures, they alone keep the API server of a small machine busy for two seconds. So failures are
written into etcd itself, one after the other as fast as etcd takes them: 500 take some 0.2 s, and the time after that is the operator's. A
separate process writes them, so that the measuring process does not spend its time on it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

from builders.child_processes import die_with_parent
from diloco_operator.api import names
from diloco_operator.kube.client import Obj
from diloco_operator.kube.rest import RestClient, load_config

from benchmarks import ROOT
from benchmarks.kube.rig import Rig, failed, mark, watching


@dataclass(frozen=True, slots=True)
class FailureBurst:
    """Times on `time.perf_counter`'s clock, which all processes of a machine share."""

    begun: float
    """When the first write that marks a pod Failed was sent."""
    all_failed: float
    """When the last such write was done."""
    first: float
    """When a watch saw the first successor."""
    last: float
    """When a watch saw the last successor."""

    @property
    def seconds(self) -> float:
        """Time from the first failure to the last successor."""
        return self.last - self.begun

    @property
    def failing_seconds(self) -> float:
        """Time from the first failure to the last."""
        return self.all_failed - self.begun


@asynccontextmanager
async def failure_burst(bench: Rig, namespace: str, *, reported: bool = False) -> AsyncIterator[asyncio.Task[FailureBurst]]:
    """Make all learner pods of the namespace fail at once, but for those that have failed already. The task ends when all have successors.
    With `reported` the failures go through the API server, as kubelets report them, as fast as it takes them."""
    way = "" if reported else bench.plane.etcd_url
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.kube.failure_burst", str(bench.plane.kubeconfig), way, namespace),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        preexec_fn=die_with_parent,
    )

    async def result() -> FailureBurst:
        out, _ = await process.communicate()
        if process.returncode != 0:
            raise RuntimeError("the process that fails pods failed")
        return FailureBurst(**json.loads(out))

    task = asyncio.create_task(result())
    try:
        yield task
        await task
    finally:
        if process.returncode is None:
            process.kill()
        await asyncio.gather(task, return_exceptions=True)


def failures(pods: list[Obj]) -> bytes:
    """The requests that mark these pods Failed in etcd. Each pod gets a revision of its own: watches continue from revisions, and would
    miss pods that share one. API servers write protobuf to etcd, but also read JSON from it."""
    requests = []
    for pod in pods:
        meta = {key: value for key, value in pod["metadata"].items() if key != "resourceVersion"}
        stored = {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": meta, "status": pod["status"] | failed(pod)}
        key = f"/registry/pods/{meta['namespace']}/{meta['name']}"
        body = json.dumps({"key": _base64(key), "value": _base64(json.dumps(stored))}).encode()
        requests.append(b"POST /v3/kv/put HTTP/1.1\r\nHost: etcd\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    return b"".join(requests)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def send(etcd: str, requests: bytes, count: int) -> None:
    """Send all requests on one connection, without waiting for answers in between. `count`: their number."""
    host, _, port = etcd.removeprefix("http://").partition("/")[0].partition(":")
    with socket.create_connection((host, int(port)), timeout=240) as connection:
        sending = threading.Thread(target=connection.sendall, args=(requests,))
        sending.start()
        answers = b""
        while answers.count(b"HTTP/1.1 ") < count or not answers.endswith(b"}"):
            answers += connection.recv(1 << 20) or b"HTTP/1.1 5"
            if b"HTTP/1.1 4" in answers or b"HTTP/1.1 5" in answers:
                raise RuntimeError(f"etcd did not take a failure: {answers[-500:]!r}")
        sending.join()


async def fail_all(kubeconfig: str, etcd: str, namespace: str) -> FailureBurst:
    async with RestClient.connect(load_config(kubeconfig)) as client, watching(client, namespace) as watch:
        selector = f"{names.LABEL_COMPONENT}={names.COMPONENT_LEARNER}"
        answer = await client.list(names.PODS, namespace, label_selector=selector)
        pods = [pod for pod in answer.items if pod.get("status", {}).get("phase") != "Failed"]
        requests = failures(pods)
        begun = time.perf_counter()
        if etcd:
            await asyncio.to_thread(send, etcd, requests, len(pods))
        else:
            await mark(client, pods, failed)
        all_failed = time.perf_counter()
        await watch.until(lambda: len(watch.added) == len(pods), f"{len(pods)} successors made")
        return FailureBurst(begun, all_failed, min(watch.added.values()), max(watch.added.values()))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(asyncio.run(fail_all(*sys.argv[1:4])))))
