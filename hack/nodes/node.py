"""One real node: a bridge for its pods, containerd with runc, and a kubelet. It works only inside `sandbox.run`.

Several nodes share the sandbox and route to each other. A node's address is its bridge's. There is no kube-proxy: headless Services work,
and other Services only if `network` listens at their address. Nothing enforces NetworkPolicies.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nodes import cache, packages
from nodes.images import PAUSE
from nodes.oci import Image

START_SECONDS = 180.0
"""How long a program may take to answer. Only a defect takes this long; usual is about a second."""
_LOG_LINES = 25
_NAMESPACE = "k8s.io"
"""The namespace in containerd that has the kubelet's images and containers."""
_LEFT_BEHIND = ("io.containerd.grpc.v1.cri", "io.containerd.runtime.v2.task")
"""Folders in which containerd keeps state of pods. A new run removes them: its predecessor's pods ended with their sandbox."""
_EVICTION_SIGNALS = ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree")


class NodeError(Exception):
    """A program of a node ended or does not answer. The message holds its last log lines."""


class Node:
    """A node of a control plane. It registers itself when its kubelet starts."""

    def __init__(
        self,
        name: str,
        index: int,
        folder: Path,
        *,
        kubelet: Path,
        kubeconfig: Path,
        dns: str,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Prepare node `index`, with the network 10.244.<index>.0/24. `folder`: for its logs and state; `dns`: address of a name server."""
        self.name = name
        self.address = f"10.244.{index}.1"
        self._network = f"10.244.{index}.0/24"
        self._bridge = f"node{index}"
        self._folder = folder
        self._packages = packages.provide()
        self._kubelet_program = kubelet
        self._kubeconfig = kubeconfig
        self._labels = dict(labels or {})
        # The store stays in the cache: so an image is unpacked only once, and later only the layers that changed.
        self._store = cache.FOLDER / "stores" / name
        self.socket = folder / "containerd.sock"
        folder.mkdir(parents=True)
        _write_json(folder / "cni/10-bridge.conflist", self._cni())
        _write_json(folder / "kubelet.json", self._kubelet(dns, taints))
        (folder / "resolv.conf").write_text("")  # only the cluster's names: there is no network to reach others
        self._containerd = _Program("containerd", folder)
        self._kubelet_process = _Program("kubelet", folder)

    # --- life ---
    def start(self, images: Iterable[Image]) -> None:
        """Bring these images into the store, then start containerd and the kubelet. Raises `NodeError`."""
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        self._fill_store(images)
        self._start_containerd(pods=True)
        self.start_kubelet()

    def start_kubelet(self) -> None:
        """Start the kubelet, which registers the node if the API server does not know it. Does not wait for Ready."""
        arguments = [
            f"--config={self._folder / 'kubelet.json'}",
            f"--kubeconfig={self._kubeconfig}",
            f"--root-dir={self._folder / 'kubelet'}",
            f"--cert-dir={self._folder / 'pki'}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            f"--node-labels={','.join(f'{key}={value}' for key, value in self._labels.items())}",
        ]
        self._kubelet_process.start([self._kubelet_program, *arguments], os.environ)

    def kill_kubelet(self) -> None:
        """Kill the kubelet with SIGKILL. It tells the API server nothing, and the containers run on."""
        self._kubelet_process.kill()

    def _start_containerd(self, *, pods: bool) -> None:
        environment = {**os.environ, "PATH": packages.search_path(self._packages)}
        config = self._folder / f"containerd-{'pods' if pods else 'store'}.toml"
        config.write_text(self._containerd_config(pods))
        self._containerd.start([self._packages / "usr/bin/containerd", "--config", config], environment)
        self._containerd.wait_for(lambda: self._ctr("version", check=False).returncode == 0, "an answer")

    # --- images ---
    def _fill_store(self, images: Iterable[Image]) -> None:
        """Remove the pods of an earlier run from the store, and bring in the images, before anything else uses the store."""
        for folder in _LEFT_BEHIND:
            shutil.rmtree(self._store / folder, ignore_errors=True)
        self._start_containerd(pods=False)
        for container in self._ctr("containers", "list", "--quiet").stdout.split():
            self._ctr("containers", "delete", container)
        for snapshot in self._ctr("snapshots", "list").stdout.splitlines()[1:]:
            name, *_, kind = snapshot.split()
            if kind == "Active":  # a container's snapshot; those of images are committed
                self._ctr("snapshots", "remove", name)
        present = {line.split()[0]: line.split()[2] for line in self._ctr("images", "list").stdout.splitlines()[1:]}
        held = set(self._ctr("content", "list", "--quiet").stdout.split())
        for image in images:
            if present.get(image.name) != image.digest:
                self._import(image, held)
        self._containerd.end()

    def _import(self, image: Image, held: set[str]) -> None:
        command = self._ctr_command("images", "import", "-")
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as importing:
            assert importing.stdin is not None
            assert importing.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # ctr ended; its output says why
                image.write(importing.stdin, held)
                importing.stdin.close()
            output = importing.stdout.read().decode()
        if importing.returncode != 0:
            raise NodeError(f"node {self.name} cannot import {image.name}: {output}")
        held.update(layer.digest for layer in image.layers)

    def _ctr_command(self, *arguments: str) -> list[str]:
        return [str(self._packages / "usr/bin/ctr"), f"--address={self.socket}", f"--namespace={_NAMESPACE}", *arguments]

    def _ctr(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(self._ctr_command(*arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise NodeError(f"node {self.name}: ctr {' '.join(arguments)}: {done.stderr}{self._containerd.last_lines()}")
        return done

    # --- containers ---
    def processes(self, pod: str, container: str) -> list[int]:
        """The process ids of a container, its first process first. Empty if it does not run."""
        wanted = {"io.kubernetes.pod.name": pod, "io.kubernetes.container.name": container}
        tasks = {line.split()[0]: line.split()[1:] for line in self._ctr("tasks", "list").stdout.splitlines()[1:]}
        for identity in self._ctr("containers", "list", "--quiet").stdout.split():
            labels = json.loads(self._ctr("containers", "info", identity).stdout)["Labels"]
            pid, status = tasks.get(identity, ["", ""])
            if status == "RUNNING" and wanted.items() <= labels.items():
                members = [int(line.split()[0]) for line in self._ctr("tasks", "ps", identity).stdout.splitlines()[1:]]
                return [int(pid), *(member for member in members if member != int(pid))]
        return []

    # --- configuration ---
    def _cni(self) -> dict[str, Any]:
        ranges = [[{"subnet": self._network}]]
        addresses = {"type": "host-local", "dataDir": str(self._folder / "addresses"), "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"type": "bridge", "bridge": self._bridge, "isGateway": True, "ipMasq": False, "ipam": addresses}
        return {"cniVersion": "1.0.0", "name": "nodes", "plugins": [bridge]}

    def _containerd_config(self, pods: bool) -> str:
        # oom_score 0 and restrict_oom_score_adj: without CAP_SYS_RESOURCE a process may not lower its own score. JSON's strings are valid
        # in TOML.
        disabled = [] if pods else ["io.containerd.grpc.v1.cri"]
        # No garbage collection while images are imported: between an image's old and new version its lower layers have no owner.
        collector = {"schedule_delay": "0s", "startup_delay": "100ms"} if pods else {"schedule_delay": "24h", "startup_delay": "24h"}
        return f"""\
version = 2
root = {json.dumps(str(self._store))}
state = {json.dumps(str(self._folder / "run"))}
oom_score = 0
disabled_plugins = {json.dumps(disabled)}
[grpc]
  address = {json.dumps(str(self.socket))}
[plugins."io.containerd.internal.v1.opt"]
  path = {json.dumps(str(self._folder / "opt"))}
[plugins."io.containerd.gc.v1.scheduler"]
  schedule_delay = {json.dumps(collector["schedule_delay"])}
  startup_delay = {json.dumps(collector["startup_delay"])}
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = {json.dumps(PAUSE)}
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = {json.dumps(str(self._packages / "usr/lib/cni"))}
    conf_dir = {json.dumps(str(self._folder / "cni"))}
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = {json.dumps(str(self._packages / "usr/sbin/runc"))}
      Root = {json.dumps(str(self._folder / "runc"))}
"""

    def _kubelet(self, dns: str, taints: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "healthzPort": 0,
            # Anonymous access is safe: only the sandbox can reach the kubelet.
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "registerWithTaints": list(taints),
            "clusterDNS": [dns],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self._folder / "resolv.conf"),
            "podLogsDir": str(self._folder / "logs"),
            "volumePluginDir": str(self._folder / "volume-plugins"),
            # cgroup v1, and two kubelets in one hierarchy: each would remove the groups of the other's pods.
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            # With this gate the kubelet goes on if it may not change kernel settings and limits, as root in a container may not.
            "featureGates": {"KubeletInUserNamespace": True},
            "oomScoreAdj": 0,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            # Report often, so that a lost node is noticed in seconds. The control plane's settings match.
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 8,
            # Never evict pods because this machine is short of disk or memory, and never delete images: they cannot be pulled again.
            "evictionHard": dict.fromkeys(_EVICTION_SIGNALS, "0%"),
            "imageGCHighThresholdPercent": 100,
        }

    def last_lines(self) -> str:
        """The end of the node's logs, for a message."""
        return f"{self._containerd.last_lines()}\n{self._kubelet_process.last_lines()}"


class _Program:
    """A program with a log. It may be started again after it was stopped, and ends with the sandbox."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        assert self._process is None, f"{self._name} runs already"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        self._stop(signal.SIGKILL)

    def end(self) -> None:
        self._stop(signal.SIGTERM)

    def _stop(self, number: int) -> None:
        assert self._process is not None, f"{self._name} does not run"
        self._process.send_signal(number)
        self._process.wait()
        self._process = None

    def wait_for(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until `holds()`. Raises `NodeError` if the program ends meanwhile, or after `START_SECONDS`. `what`: for the message."""
        end = time.monotonic() + START_SECONDS
        while not holds():
            if self._process is None or self._process.poll() is not None or time.monotonic() > end:
                raise NodeError(f"waited for {what} of {self._name} in vain.\n{self.last_lines()}")
            time.sleep(0.02)

    def last_lines(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:] if self._log.exists() else []
        return f"The end of {self._log}:\n" + "\n".join(lines)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1))
