"""`kubectl diloco export` against a scripted API server whose pods run the export here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from builders.http_server import serving, status
from builders.snapshots import a_model, save_snapshot
from diloco.export.model_file import DType
from diloco.export.places import ExportError
from diloco.export.stream import Announcement
from diloco.export.target_file import TargetFile
from diloco_cli.checks.rights import COMMANDS
from diloco_cli.cluster import CommandError
from diloco_cli.commands.export import summary
from diloco_cli.kubectl.export import fetch_model
from diloco_cli.kubectl.export_claim import ClaimRequest, claim_pod
from diloco_cli.kubectl.export_pod import PodRequest, mounts
from diloco_cli.kubectl.snapshots import list_claim
from diloco_local.environment import Command
from diloco_operator.kube.rest import RestClient, load_config
from diloco_operator.kube.rest.pod_exec import PROTOCOL
from safetensors.numpy import load_file
from simulated_nodes.exec_endpoint import ExecEndpoint

type Obj = dict[str, Any]

NAMESPACE = "jobs"
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "export", "state": {"running": {}}}]}


def a_claim(*modes: str, image: str = "", uid: str = "u1") -> Obj:
    """Kept, of the job with this uid. `image`: the syncer's."""
    annotations = {"diloco.dev/job-uid": uid, **({"diloco.dev/syncer-image": image} if image else {})}
    metadata = {"name": "quad-syncer", "labels": {"diloco.dev/job": "quad"}, "annotations": annotations}
    return {"metadata": metadata, "spec": {"accessModes": list(modes) or ["ReadWriteOnce"]}}


def a_job(**spec: Any) -> Obj:
    return {"metadata": {"name": "quad", "namespace": NAMESPACE, "uid": "u1"}, "spec": {"training": {}, **spec}}


def a_syncer(node: str = "n1", image: str = "registry/syncer:1", phase: str = "Running") -> Obj:
    volume = {"name": "diloco-state", "persistentVolumeClaim": {"claimName": "quad-syncer"}}
    spec = {"nodeName": node, "containers": [{"name": "syncer", "image": image}], "volumes": [volume]}
    return {"metadata": {"name": "quad-syncer", "uid": "s1"}, "spec": spec, "status": {"phase": phase}}


class Cluster:
    """What the server has, and what it was asked for."""

    def __init__(self, volume: Path) -> None:
        self.job: Obj | None = a_job()
        self.claim: Obj | None = a_claim(image="registry/syncer:1")
        self.pods: dict[str, Obj] = {}
        self.config_maps: list[Obj] | None = None
        """None: the user may not list them."""
        self.pod_status: Obj = RUNNING
        """The status of a pod that is created."""
        self.created: list[Obj] = []
        self.asked: set[str] = set()
        """Verb and kind of each request."""
        self._endpoint = ExecEndpoint(
            lambda _component, _namespace, _pod, _container, words: Command(
                (sys.executable, "-m", "diloco.export", str(volume), *words[4:]), {}, None
            )
        )
        self.execute: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
        """What answers a request to run a program; None: the program runs."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.split("/")
        kind = parts[parts.index(NAMESPACE) + 1] if NAMESPACE in parts else parts[-1]
        name = parts[parts.index(kind) + 1] if kind != parts[-1] else ""
        verb = {"POST": "create", "DELETE": "delete"}.get(request.method, "get" if name else "list")
        self.asked.add(f"{verb} {kind}{'/exec' if parts[-1] == 'exec' else ''}")
        if parts[-1] == "exec":
            if self.execute is not None:
                return await self.execute(request)
            return await self._endpoint.run(request, NAMESPACE, name, request.query["container"])
        if kind == "dilocojobs":
            return self._found(self.job) if name else web.json_response({"metadata": {}, "items": []})
        if kind == "persistentvolumeclaims":
            return self._found(self.claim)
        if kind == "configmaps":
            if self.config_maps is None:
                return status(403, "Forbidden")
            return web.json_response({"metadata": {}, "items": self.config_maps})
        assert kind == "pods", request.path
        return await self._on_pods(request, name)

    async def _on_pods(self, request: web.Request, name: str) -> web.StreamResponse:
        if request.method == "POST":
            pod = json.loads(await request.read())
            pod["metadata"]["uid"] = "e1"
            pod["status"] = self.pod_status
            self.created.append(pod)
            self.pods[pod["metadata"]["name"]] = pod
            return web.json_response(pod)
        if request.method == "DELETE":
            return self._found(self.pods.pop(name, None))
        if name:
            return self._found(self.pods.get(name))
        key, _, value = request.query.get("labelSelector", "").partition("=")
        items = [pod for pod in self.pods.values() if not key or (pod["metadata"].get("labels") or {}).get(key) == value]
        return web.json_response({"metadata": {}, "items": items})

    @staticmethod
    def _found(obj: Obj | None) -> web.Response:
        return status(404, "NotFound") if obj is None else web.json_response(obj)


class Desk:
    """A user with a kubeconfig."""

    def __init__(self, cluster: Cluster, client: RestClient, folder: Path) -> None:
        self.cluster, self.client, self.folder = cluster, client, folder
        self.file = folder / "model.safetensors"

    async def export(
        self, job: str = "quad", *, step: int | None = None, snapshot: str = "", dtype: DType = "float32", **request: Any
    ) -> tuple[TargetFile, Announcement] | str:
        return await fetch_model(self.client, NAMESPACE, ClaimRequest(job, **request), self.file, step, snapshot, dtype)

    def assert_nothing_stays(self) -> None:
        assert list(self.folder.iterdir()) == []
        assert [name for name in self.cluster.pods if "-export-" in name] == []


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    save_snapshot(tmp_path / "volume" / "snapshots", 10, a_model(1), job="quad")
    save_snapshot(tmp_path / "volume" / "snapshots", 20, a_model(2), job="quad")
    (tmp_path / "out").mkdir()
    cluster = Cluster(tmp_path / "volume")
    async with serving(cluster.handle) as server, RestClient.connect(load_config(str(server.kubeconfig(tmp_path)))) as client:
        yield Desk(cluster, client, tmp_path / "out")


# --- what comes -------------------------------------------------------------------------------------------------------
@pytest.mark.slow
async def test_the_model_comes_through_a_pod_that_is_deleted_afterwards(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    written = await desk.export()
    assert isinstance(written, tuple)
    said = summary(*written, "float32")
    assert said.startswith(f"{desk.file}: 16 parameters in 3 tensors, float32, ")
    assert "outer step 20 of job quad, sha256 " in said
    assert load_file(desk.file)["scale"] == 2
    assert list(desk.folder.iterdir()) == [desk.file]
    assert desk.cluster.pods == {}
    assert "reading claim quad-syncer through pod quad-syncer-export-" in capsys.readouterr().err


@pytest.mark.slow
async def test_step_and_type_are_chosen_in_the_pod(desk: Desk) -> None:
    await desk.export(step=10, dtype="float16")
    assert load_file(desk.file)["scale"] == 1
    assert load_file(desk.file)["scale"].dtype == np.float16


@pytest.mark.slow
async def test_a_snapshot_is_chosen_by_its_name(desk: Desk) -> None:
    await desk.export(snapshot="snapshot-00000001-t10")
    assert load_file(desk.file)["scale"] == 1
    with pytest.raises(CommandError, match="there is no finished snapshot snapshot-00000007-t70 in"):
        await desk.export(snapshot="snapshot-00000007-t70")


@pytest.mark.slow
async def test_the_snapshots_on_a_claim_are_listed_through_a_pod(desk: Desk) -> None:
    request = await claim_pod(desk.client, NAMESPACE, ClaimRequest("quad"))
    assert isinstance(request, PodRequest)
    found = await list_claim(desk.client, request, check=True)
    assert [(one.snapshot, one.step, one.state) for one in found] == [
        ("snapshot-00000002-t20", 20, "whole"),
        ("snapshot-00000001-t10", 10, "whole"),
    ]
    desk.assert_nothing_stays()


@pytest.mark.slow
async def test_doctor_names_the_rights_that_it_takes(desk: Desk) -> None:
    await desk.export()
    named = {
        f"{verb} {resource.plural}{f'/{part}' if part else ''}" for resource, part, verbs in COMMANDS["export"] for verb in verbs.split()
    }
    # Kubernetes asks for create on pods/exec, too, of who opens a WebSocket; pods are deleted in each export, and read where one waits.
    assert desk.cluster.asked <= named
    assert named - desk.cluster.asked <= {"create pods/exec", "get pods/exec"}


@pytest.mark.slow
async def test_a_claim_without_a_job_is_exported(desk: Desk) -> None:
    desk.cluster.job = None
    await desk.export(job="", claim="kept")
    assert load_file(desk.file)["scale"] == 2
    assert mounts(desk.cluster.created[0], "kept")


@pytest.mark.slow
async def test_of_a_running_job_the_pod_runs_on_the_syncers_node(desk: Desk) -> None:
    desk.cluster.pods["quad-syncer"] = a_syncer("n7")
    await desk.export()
    terms = desk.cluster.created[0]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms == {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n7"]}]}]}
    assert desk.cluster.pods.keys() == {"quad-syncer"}


@pytest.mark.slow
async def test_of_an_ended_job_the_pod_may_run_anywhere(desk: Desk) -> None:
    desk.cluster.pods["quad-syncer"] = a_syncer(phase="Succeeded")
    await desk.export()
    assert "affinity" not in desk.cluster.created[0]["spec"]


@pytest.mark.slow
async def test_pods_that_earlier_exports_left_are_removed(desk: Desk) -> None:
    for name, phase in (("ended", "Failed"), ("other", "Running")):
        old = a_syncer(phase=phase)
        old["metadata"] = {"name": name, "uid": name, "labels": {"diloco.dev/component": "export"}}
        desk.cluster.pods[name] = old
    await desk.export()
    assert desk.cluster.pods.keys() == {"other"}


# --- the pod ----------------------------------------------------------------------------------------------------------
async def test_the_pod_is_read_only_restricted_and_ends_by_itself(desk: Desk) -> None:
    desk.cluster.job = a_job(
        syncer={
            "template": {
                "spec": {
                    "imagePullSecrets": [{"name": "registry"}],
                    "tolerations": [{"key": "cpu", "operator": "Exists"}],
                    "securityContext": {"runAsUser": 1000},
                    "containers": [{"name": "syncer", "image": "own/syncer:2", "command": ["/venv/bin/python", "-m", "diloco.syncer"]}],
                }
            }
        }
    )
    desk.cluster.pods["quad-export-stays"] = a_syncer(phase="Succeeded")
    desk.cluster.pod_status = {"phase": "Failed", "reason": "DeadlineExceeded"}
    with pytest.raises(CommandError, match="DeadlineExceeded"):
        await desk.export(seconds=90)
    spec = desk.cluster.created[0]["spec"]
    container = spec["containers"][0]
    assert container["command"] == ["/venv/bin/python", "-m", "diloco.export", "--hold"]
    assert container["image"] == "own/syncer:2"
    assert container["volumeMounts"][0] == {"name": "diloco-state", "mountPath": "/var/lib/diloco", "readOnly": True}
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["securityContext"]["runAsUser"] == 1000
    assert spec["securityContext"]["runAsNonRoot"]
    assert (spec["restartPolicy"], spec["activeDeadlineSeconds"], spec["automountServiceAccountToken"]) == ("Never", 90, False)
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["tolerations"] == [{"key": "cpu", "operator": "Exists"}]
    assert "diloco.dev/job" not in desk.cluster.created[0]["metadata"]["labels"], "the operator would take it for one of its own"


OPERATORS = [{"metadata": {}, "data": {"config.yaml": "syncerImage: mirror/syncer:7\n"}}]
OF_TEMPLATE = {"syncer": {"template": {"spec": {"containers": [{"name": "syncer", "image": "own/syncer:2"}]}}}}


@pytest.mark.parametrize(
    ("options", "cluster", "image"),
    [
        ({"image": "mine:1"}, {"pods": {"quad-syncer": a_syncer(phase="Succeeded")}}, "mine:1"),
        ({}, {"pods": {"quad-syncer": a_syncer(phase="Succeeded")}, "claim": a_claim(image="old:1")}, "registry/syncer:1"),
        ({}, {"job": a_job(**OF_TEMPLATE)}, "own/syncer:2"),
        ({"job": "", "claim": "quad-syncer"}, {"job": a_job(**OF_TEMPLATE)}, "own/syncer:2"),  # the claim says whose it is
        ({"job": "", "claim": "quad-syncer"}, {"job": None}, "registry/syncer:1"),  # the claim was kept
        ({"job": "", "claim": "quad-syncer"}, {"job": a_job(**OF_TEMPLATE), "claim": a_claim(image="old:1", uid="u0")}, "old:1"),
        ({"job": "", "claim": "quad-syncer"}, {"job": None, "claim": a_claim(), "config_maps": OPERATORS}, "mirror/syncer:7"),
    ],
)
async def test_the_image_is_that_of_the_claims_own_syncer(desk: Desk, options: Obj, cluster: Obj, image: str) -> None:
    for name, value in cluster.items():
        setattr(desk.cluster, name, dict(value) if name == "pods" else value)
    desk.cluster.pod_status = {"phase": "Failed", "reason": "Stopped"}  # the image is known by then
    with pytest.raises(CommandError, match="Stopped"):
        await desk.export(**options)
    assert desk.cluster.created[-1]["spec"]["containers"][0]["image"] == image


@pytest.mark.parametrize("config_maps", [None, [], [{"metadata": {}, "data": {}}]])
async def test_where_no_image_is_known_one_is_asked_for(desk: Desk, config_maps: list[Obj] | None) -> None:
    desk.cluster.job, desk.cluster.claim, desk.cluster.config_maps = None, a_claim(), config_maps
    with pytest.raises(CommandError, match=r"no image is known that reads claim quad-syncer: .* Name the syncer's image with --image"):
        await desk.export(job="", claim="quad-syncer")
    assert desk.cluster.created == []


# --- what goes wrong --------------------------------------------------------------------------------------------------
async def test_a_target_that_is_no_regular_file_is_refused_before_a_pod_is_made(desk: Desk) -> None:
    os.mkfifo(desk.file)
    with pytest.raises(ExportError, match=r"model\.safetensors is a pipe"):
        await desk.export()
    assert (desk.file.is_fifo(), desk.cluster.created) == (True, [])


async def test_a_claim_for_one_pod_only_is_refused_while_the_job_runs(desk: Desk) -> None:
    desk.cluster.claim = a_claim("ReadWriteOncePod", image="registry/syncer:1")
    desk.cluster.pods["quad-syncer"] = a_syncer()
    with pytest.raises(CommandError, match="claim quad-syncer is ReadWriteOncePod and pod quad-syncer uses it"):
        await desk.export()
    assert desk.cluster.created == []


async def test_without_a_claim_the_copies_are_named_or_nothing_is_there(desk: Desk) -> None:
    desk.cluster.claim = None
    with pytest.raises(CommandError, match='there is no claim "quad-syncer" in namespace "jobs"'):
        await desk.export()
    desk.cluster.job = a_job(training={"checkpoint": {"uri": "s3://bucket/jobs/"}})
    assert await desk.export() == "s3://bucket/jobs/jobs-quad-u1"


@pytest.mark.slow
async def test_the_command_reads_the_copies_when_there_is_no_claim(desk: Desk) -> None:
    base = desk.folder.parent
    save_snapshot(base / "copies" / "jobs-quad-u1", 30, a_model(3), job="quad")
    save_snapshot(base / "copies" / "jobs-quad-u0", 40, a_model(4), job="quad")  # of an earlier job of this name
    desk.cluster.claim = None
    desk.cluster.job = a_job(training={"checkpoint": {"uri": f"file://{base}/copies"}})
    program = str(Path(sys.executable).parent / "kubectl-diloco")
    words = ["export", "quad", "-n", NAMESPACE, "--kubeconfig", str(base / "kubeconfig"), "-o", str(desk.file)]
    pipe = asyncio.subprocess.PIPE
    command = await asyncio.create_subprocess_exec(program, *words, stdout=pipe, stderr=pipe)
    out, err = await command.communicate()
    assert command.returncode == 0, err
    assert b"there is no claim quad-syncer: this machine reads the copies of its snapshots" in err
    assert b"outer step 30 of job quad" in out
    assert load_file(desk.file)["scale"] == 3


async def test_a_stream_that_is_cut_leaves_no_file_and_no_pod(desk: Desk) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        announced = {"format": 1, "bytes": 999, "step": 1, "job": "quad", "snapshot": "s", "remark": "", "tensors": 1, "parameters": 1}
        await socket.send_bytes(b"\1" + json.dumps(announced).encode() + b"\nhalf a file")
        await socket.close()
        return socket

    desk.cluster.execute = cut
    with pytest.raises(ExportError, match="the stream ended after 11 of 999 bytes"):
        await desk.export()
    desk.assert_nothing_stays()


async def test_an_interrupted_export_leaves_no_file_and_no_pod(desk: Desk) -> None:
    begun = asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        begun.set()
        with contextlib.suppress(ConnectionError):
            await socket.receive()
        return socket

    desk.cluster.execute = silent
    export = asyncio.create_task(desk.export())
    await begun.wait()
    export.cancel()  # as asyncio.run does on Ctrl-C
    with pytest.raises(asyncio.CancelledError):
        await export
    desk.assert_nothing_stays()


@pytest.mark.slow
async def test_what_the_program_in_the_pod_says_reaches_the_user(desk: Desk) -> None:
    with pytest.raises(CommandError, match=r"there is no snapshot of outer step 30 in .*There are those of outer steps 20, 10\."):
        await desk.export(step=30)
    desk.assert_nothing_stays()


async def test_a_missing_right_is_named(desk: Desk) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return status(403, "Forbidden")

    desk.cluster.execute = refuse
    with pytest.raises(CommandError, match="needs get and create on pods/exec in namespace jobs"):
        await desk.export()
    desk.assert_nothing_stays()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            {
                "phase": "Failed",
                "containerStatuses": [{"state": {"terminated": {"exitCode": 1, "message": "No module named diloco.export"}}}],
            },
            "has no `python -m diloco.export`: it is no image of a syncer",
        ),
        (
            {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "InvalidImageName", "message": "bad name"}}}]},
            "cannot start: InvalidImageName: bad name",
        ),
        (
            {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]},
            "does not run after 1 s: no node takes it: 0/3 nodes are available",
        ),
    ],
)
async def test_a_pod_that_does_not_start_says_why_and_goes(desk: Desk, found: Obj, said: str) -> None:
    desk.cluster.pod_status = found
    with pytest.raises(CommandError) as refused:
        await desk.export(seconds=1)
    assert said in str(refused.value)
    desk.assert_nothing_stays()
