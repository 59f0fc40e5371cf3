"""The simplest program that replaces failed pods, for comparison: `python -m benchmarks.kube.bare_operator KUBECONFIG NAMESPACE JOB`.

It follows the pods of one namespace. For a pod that fails, it changes a Secret and creates the pod's successor, as the operator does for a
unit of the job. It decides nothing, so it waits only for the API server and the processor. It prints a line once it follows.
"""

from __future__ import annotations

import asyncio
import sys

from diloco_operator.api import names
from diloco_operator.kube.client import Obj
from diloco_operator.kube.rest import RestClient, load_config

from benchmarks.kube.rig import LEARNERS, Rig, bare_copy

_SECRET = "learners"
_PLACES = ("nodeName", "nodeSelector", "affinity")


async def add_bare_pods(bench: Rig, source: str, namespace: str) -> None:
    """Create copies of the learner pods of a namespace and of their Secret. The copies belong to no job and use no node."""
    [secret, *_] = [each for each in (await bench.client.list(names.SECRETS, source)).items if "learners" in each["metadata"]["name"]]
    await bench.client.create(names.SECRETS, {"metadata": {"name": _SECRET, "namespace": namespace}, "data": secret["data"]})
    for pod in await bench.pods(source):
        copy = bare_copy(pod, namespace)
        del copy["metadata"]["ownerReferences"], copy["metadata"]["labels"][names.LABEL_JOB]
        copy["spec"] = {field: value for field, value in copy["spec"].items() if field not in _PLACES}
        await bench.client.create(names.PODS, copy)


def successor(pod: Obj, job: str) -> Obj:
    """The successor of a failed pod, named as the operator would name it."""
    copy = bare_copy(pod, pod["metadata"]["namespace"])
    labels = copy["metadata"]["labels"]
    attempt = int(labels[names.LABEL_ATTEMPT]) + 1
    copy["metadata"] |= {
        "name": names.learner_pod_name(job, labels[names.LABEL_UNIT], attempt, 0),
        "labels": labels | {names.LABEL_ATTEMPT: str(attempt)},
    }
    return copy


async def follow(kubeconfig: str, namespace: str, job: str) -> None:
    async with RestClient.connect(load_config(kubeconfig)) as client, asyncio.TaskGroup() as group:
        data = (await client.get(names.SECRETS, namespace, _SECRET))["data"]

        async def replace(pod: Obj) -> None:
            await client.patch(names.SECRETS, namespace, _SECRET, {"data": data}, metadata_only=True)
            await client.create(names.PODS, successor(pod, job), metadata_only=True)

        version = (await client.list(names.PODS, namespace)).resource_version
        sys.stdout.write("follows\n")
        sys.stdout.flush()
        seen: set[str] = set()
        while True:
            async for event in client.watch(
                names.PODS, namespace, resource_version=version, label_selector=LEARNERS, timeout_seconds=3600, allow_bookmarks=True
            ):
                version = event.object["metadata"]["resourceVersion"]
                name = event.object["metadata"].get("name", "")
                if event.object.get("status", {}).get("phase") == "Failed" and name not in seen:
                    seen.add(name)
                    group.create_task(replace(event.object))


if __name__ == "__main__":
    asyncio.run(follow(*sys.argv[1:]))
