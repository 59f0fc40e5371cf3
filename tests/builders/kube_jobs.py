"""Jobs on a real control plane: the chart's rights, the operator and the simulated nodes as processes, and the words of a test."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from builders.chart import CHART, NAMESPACE, RELEASE
from builders.child_processes import Launcher
from builders.control_plane import PROGRAMS, ControlPlane
from builders.local import WAIT_SECONDS, Cluster, Holds
from builders.operator_process import DEFAULT, OperatorReplica, replica
from diloco_operator.api.state import JobState
from diloco_operator.kube.client import Unavailable
from diloco_operator.kube.rest import RestClient, load_config
from simulated_nodes.names import LABEL_SERVER

type Obj = dict[str, Any]

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
"""The operator, as the audit log names it."""
TESTS = Path(__file__).parents[1]


# --- processes --------------------------------------------------------------------------------------------------------
class NodesCommand:
    """`python -m simulated_nodes` as a process, in a folder of its own; ends with the process that started it."""

    def __init__(self, folder: Path, kubeconfig: Path, fleet: Sequence[Obj], *options: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "fleet.yaml").write_text(yaml.safe_dump_all(fleet))
        command = [
            sys.executable,
            "-m",
            "simulated_nodes",
            "--kubeconfig",
            str(kubeconfig),
            "--fleet",
            "fleet.yaml",
            "--state-dir",
            "state",
            *options,
        ]
        self._launcher = Launcher()
        self._command = command
        self.process: subprocess.Popen[str] = self._launcher.start(self._start)

    def _start(self, prepare: Callable[[], None]) -> subprocess.Popen[str]:
        with (self.folder / "nodes.log").open("ab") as log:
            return subprocess.Popen(
                self._command,
                cwd=self.folder,
                env=os.environ | {"PYTHONPATH": str(TESTS)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=prepare,
            )

    def wait_ready(self) -> str:
        """Its first line, once every node is registered."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert " Ready: " in line
        return line

    def lose(self) -> None:
        """All machines are gone at once, with what runs on them."""
        self.process.kill()
        self.process.communicate()

    def begin_again(self) -> None:
        """As machines of the same names, after `lose`."""
        self.process = self._launcher.start(self._start)
        self.wait_ready()

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        """Its exit status after a signal."""
        self.process.send_signal(number)
        return self.process.wait(WAIT_SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._launcher.close()

    def log(self, pod: str) -> str:
        """What a pod of the namespace default has written, all containers and restarts."""
        return "".join(path.read_text() for path in sorted((self.folder / "state/logs/default" / pod).glob("*.log")))


@contextlib.contextmanager
def nodes_command(folder: Path, kubeconfig: Path, fleet: Sequence[Obj], *options: str) -> Iterator[NodesCommand]:
    """Ready, and gone in good order at the end."""
    found = NodesCommand(folder, kubeconfig, fleet, *options)
    try:
        found.wait_ready()
        yield found
        assert found.end() == 0
    finally:
        found.close()


# --- the chart --------------------------------------------------------------------------------------------------------
def install_chart(plane: ControlPlane, *, clusters: Sequence[Obj] = (), **config: Any) -> None:
    """Everything of the chart but a running pod: its CRD, ServiceAccount, roles and configuration. Jobs are in namespace default.
    `clusters`: the value of this name."""
    values = {"replicas": 0, "config": config, "watchNamespaces": ["default"], "clusters": list(clusters)}
    plane.helm("install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--create-namespace", "--values", "-", input=json.dumps(values))
    plane.wait_until_established("dilocojobs.diloco.dev")


@contextlib.contextmanager
def operator(
    plane: ControlPlane, folder: Path, name: str = "operator", *options: str, kubeconfigs: Mapping[str, Path] | None = None
) -> Iterator[OperatorReplica]:
    """`diloco-operator run` as the chart's ServiceAccount, with the chart's configuration and namespaces and nothing else. `kubeconfigs`:
    name of another cluster -> the file in place of the one that a pod mounts."""
    kubeconfig = plane.kubeconfig_for(plane.token(NAMESPACE, RELEASE), RELEASE)
    config = folder / "config.yaml"
    text = plane.kubectl("-n", NAMESPACE, "get", "configmap", f"{RELEASE}-config", "-o", r"jsonpath={.data.config\.yaml}").stdout
    for cluster, path in (kubeconfigs or {}).items():
        mounted = f"/etc/diloco-operator-clusters/{cluster}/kubeconfig"
        assert mounted in text
        text = text.replace(mounted, str(path))
    config.write_text(text)
    container = plane.request("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{RELEASE}")["spec"]["template"]["spec"][
        "containers"
    ][0]
    where = [argument for argument in container["args"] if argument.startswith("--watch-namespace=")]
    assert where, "the chart names the namespaces"
    given = ("--config", str(config), "--leader-elect-namespace", NAMESPACE, *DEFAULT, *where, *options)
    with replica(folder, name, kubeconfig, *given) as found:
        yield found


@contextlib.contextmanager
def watched_states(plane: ControlPlane, folder: Path, job: str) -> Iterator[Callable[[], list[str]]]:
    """Column STATE of `kubectl get dlj JOB --watch`: each state that it printed so far, in turn. The job must be there; when the context
    begins, kubectl has shown it."""
    shown, launcher = folder / f"watched-{job}", Launcher()
    command = [str(PROGRAMS / "kubectl"), "get", "dlj", job, "--watch", "--no-headers"]

    def begin(prepare: Callable[[], None]) -> subprocess.Popen[bytes]:
        with shown.open("wb") as out:
            return subprocess.Popen(command, env=plane.environment, stdin=subprocess.DEVNULL, stdout=out, preexec_fn=prepare)

    def states() -> list[str]:
        rows = (line.split() for line in shown.read_text().rpartition("\n")[0].splitlines())  # kubectl may be in the middle of one
        named = (row[1] for row in rows if row[1] in list(JobState))  # a new job has none
        return [state for state, _ in itertools.groupby(named)]

    process = launcher.start(begin)
    try:
        plane.wait_for(lambda: shown.stat().st_size > 0, f"kubectl to show job {job}")
        yield states
    finally:
        process.kill()
        process.wait()
        launcher.close()


# --- jobs -------------------------------------------------------------------------------------------------------------
class KubeCluster(Cluster):
    """`Cluster` of a real control plane: what changes something goes through kubectl."""

    def __init__(self, control: ControlPlane, client: RestClient, nodes: NodesCommand) -> None:
        self.control, self.client, self.nodes = control, client, nodes

    async def kubectl(self, *args: str, input: str | None = None) -> str:
        return (await asyncio.to_thread(self.control.kubectl, *args, input=input)).stdout

    async def apply(self, job: Obj) -> Obj:
        await self.kubectl("apply", "-f", "-", input=yaml.safe_dump(job))
        return job

    async def change(self, name: str, spec: Obj) -> Obj:
        await self.kubectl("patch", "dlj", name, "--type=merge", "-p", json.dumps({"spec": spec}))
        return spec

    async def job(self, name: str, holds: Holds = lambda job: job is not None, *, timeout: float = WAIT_SECONDS) -> Obj:
        """The job, as soon as it is so; an API server that is away is waited for."""
        async with asyncio.timeout(2 * timeout):
            while True:
                try:
                    return await super().job(name, holds, timeout=timeout)
                except (Unavailable, OSError):
                    await asyncio.sleep(0.2)

    async def _unless_failed(self, wanted: Any) -> Any:
        return await wanted

    def log(self, pod: str) -> str:
        return self.nodes.log(pod)


_EXPLAINING = (
    ("get", "dlj,pods", "-o", "wide"),
    ("get", "events"),
    ("get", "dlj", "-o", "jsonpath-as-json={.items[*]['status.units', 'status.outside']}"),
)


def _at_failure(control: ControlPlane) -> str:
    """The jobs, pods and events: what explains, beside the logs, a wait that was in vain."""
    return "\n".join(control.kubectl(*args, check=False).stdout for args in _EXPLAINING)


@contextlib.asynccontextmanager
async def kube_cluster(control: ControlPlane, folder: Path, fleet: Sequence[Obj], *options: str) -> AsyncIterator[KubeCluster]:
    """Simulated nodes on a control plane; jobs are deleted at the end. `options` go to `python -m simulated_nodes`."""
    try:
        with nodes_command(folder, control.kubeconfig, fleet, *options) as nodes:
            async with RestClient.connect(load_config(control.kubeconfig)) as client:
                try:
                    yield KubeCluster(control, client, nodes)
                except BaseException:
                    print(_at_failure(control))  # with the test's captured output
                    raise
    finally:  # also of a test that failed: the next one begins with an empty cluster
        control.kubectl("delete", "dlj,pods,configmaps,secrets,services,pvc,events", "--all", "--wait=false")
        control.kubectl("delete", "nodes,storageclasses", "-l", LABEL_SERVER, "--wait=false")
