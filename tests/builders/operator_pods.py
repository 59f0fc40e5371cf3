"""A node that runs the chart's own pods: the Deployment's operator and the pod of `helm test`, as processes of this machine.

Simulated nodes run only pods of jobs: they have no images and mount no API tokens. Here the image's entry point is the installed program,
the mounted ConfigMap is a file, the token is one of the pod's ServiceAccount, and a Service's name leads to the operator that runs.

See docs/decisions/0144-documents.md.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from builders.chart import RELEASE
from builders.child_processes import Launcher
from builders.control_plane import ControlPlane, RequestFailed
from builders.ports import held_port

type Obj = dict[str, Any]

NODE = "system-0"
ADDRESS = "127.0.0.1"
METRICS, HEALTH = PORTS = (8080, 8081)
"""Ports of the chart. Here each is another one that is free, since other programs may have these."""
_POLL_SECONDS = 0.1
_HEARTBEAT_SECONDS = 5.0
"""As often as the node says that it is ready: the controller manager takes a silent one for lost, and pods go to other nodes."""
_UNUSED = {"example.com/system": "1"}
"""A resource that no job asks for, so that no unit is placed on this node."""


class SystemNode:
    """Starts what the scheduler has bound to the node, says when it is ready, and ends what is deleted."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._plane = plane
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._launcher = Launcher()
        self._running: dict[str, subprocess.Popen[Any]] = {}
        self._told: set[str] = set()
        """To end."""
        self._ports: dict[str, dict[int, int]] = {}
        self._serving: dict[int, int] = {}
        self._stop = threading.Event()
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._work_done: concurrent.futures.Future[None]
        plane.add_node(NODE, capacity=_UNUSED)

    def start(self) -> None:
        self._work_done = self._thread.submit(self._work)

    def close(self) -> None:
        self._stop.set()
        self._thread.shutdown()
        for process in self._running.values():
            process.kill()
            process.wait()
        self._launcher.close()
        self._work_done.result()  # raises what the work raised

    def _work(self) -> None:
        beat_at = time.monotonic()
        while not self._stop.is_set():
            try:
                if time.monotonic() >= beat_at:
                    self._plane.beat(NODE)
                    beat_at = time.monotonic() + _HEARTBEAT_SECONDS
                listed = self._plane.request("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={NODE}")["items"]
                for pod in listed:
                    self._serve(pod)
            except RequestFailed as error:
                if error.code not in (404, 409):  # the pod has gone, or changed, meanwhile
                    raise
            except (urllib.error.URLError, TimeoutError, ConnectionError):
                pass  # a busy machine: the next turn asks again
            time.sleep(_POLL_SECONDS)

    def _serve(self, pod: Obj) -> None:
        uid, meta = pod["metadata"]["uid"], pod["metadata"]
        if "deletionTimestamp" in meta:
            process = self._running.get(uid)
            if process and process.poll() is None:
                if uid not in self._told:
                    self._told.add(uid)
                    process.terminate()
                return  # until it has ended
            if self._serving == self._ports.get(uid):
                self._serving = {}
            options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
            self._plane.request("DELETE", f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", options)
        elif pod["status"].get("phase") in ("Succeeded", "Failed"):
            return
        elif uid not in self._running and (self._serving or not self._is_test(pod)):
            self._ports[uid] = {port: held_port() for port in PORTS}
            self._running[uid] = self._begin(pod)
        elif uid not in self._running:
            return  # the Service that the test asks has no endpoint yet
        elif self._is_test(pod):
            if (status := self._running[uid].poll()) is not None:
                self._report(pod, "Succeeded" if status == 0 else "Failed", ready=False)
        elif pod["status"].get("phase") != "Running" and _answers(f"http://{ADDRESS}:{self._ports[uid][HEALTH]}/readyz"):
            self._serving = self._ports[uid]
            self._report(pod, "Running", ready=True)

    def _reached(self, url: str, host: str) -> str:
        """The URL of a Service's port, as the operator that was ready last is reached there."""
        for port, ours in self._serving.items():
            url = url.replace(f"{host}:{port}", f"{ADDRESS}:{ours}")
        return url

    def _is_test(self, pod: Obj) -> bool:
        return bool(pod["metadata"]["labels"].get("app.kubernetes.io/component") == "test")

    def _begin(self, pod: Obj) -> subprocess.Popen[Any]:
        container, meta = pod["spec"]["containers"][0], pod["metadata"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KUBE")}
        host = f"{RELEASE}.{meta['namespace']}.svc"
        for each in container["env"]:
            fields = {"metadata.name": meta["name"], "metadata.namespace": meta["namespace"]}
            value = self._reached(each["value"], host) if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            environment[each["name"]] = value
        arguments = container["args"]
        if environment.get("TOKEN_FILE"):
            mounted = self._folder / f"{meta['name']}.token"
            mounted.write_text(self._plane.token(meta["namespace"], pod["spec"]["serviceAccountName"]))
            environment["TOKEN_FILE"] = str(mounted)
        if not self._is_test(pod):
            config = self._plane.request("GET", f"/api/v1/namespaces/{meta['namespace']}/configmaps/{RELEASE}-config")["data"][
                "config.yaml"
            ]
            mounted = self._folder / f"{meta['name']}.yaml"
            mounted.write_text(config)
            token = self._plane.token(meta["namespace"], pod["spec"]["serviceAccountName"])
            for port, ours in self._ports[meta["uid"]].items():
                arguments = [each.replace(f"address=:{port}", f"address={ADDRESS}:{ours}") for each in arguments]
            arguments = [each.replace("/etc/diloco-operator/config.yaml", str(mounted)) for each in arguments]
            arguments += ["--kubeconfig", str(self._plane.kubeconfig_for(token, meta["name"]))]
        return self._launcher.start(
            lambda prepare: subprocess.Popen(
                [*container["command"], *arguments],
                env={**environment, "PATH": self._plane.environment["PATH"]},
                stdin=subprocess.DEVNULL,
                stdout=(self._folder / f"{meta['name']}.log").open("ab"),
                stderr=subprocess.STDOUT,
                preexec_fn=prepare,
            )
        )

    def _report(self, pod: Obj, phase: str, *, ready: bool) -> None:
        conditions = [{"type": kind, "status": str(ready)} for kind in ("Ready", "ContainersReady")]
        status = {"phase": phase, "conditions": conditions, "podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}]}
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/status"
        self._plane.request("PATCH", path, {"status": status}, content_type="application/strategic-merge-patch+json")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@contextlib.contextmanager
def system_node(plane: ControlPlane, folder: Path) -> Iterator[SystemNode]:
    found = SystemNode(plane, folder)
    found.start()
    try:
        yield found
    finally:
        found.close()
