"""Real clusters beside each other, with one job over all of them: home makes a part in each of the others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builders.control_plane import ControlPlane
from builders.documents import fences
from builders.exchange import until
from builders.kube_jobs import KubeCluster, install_chart, kube_cluster, operator
from builders.load_balancer import a_plain_process, load_balancer, syncer_of
from builders.local import WAIT_SECONDS, is_true
from builders.local_jobs import a_fleet, a_quadratic_job
from builders.operator_process import OperatorReplica
from diloco_local.links import Link
from diloco_operator.reconcile.observe.part_secret import project_part_secret
from diloco_operator.report import Report, UnitPhase
from diloco_operator.telemetry.endpoint import Endpoint
from diloco_operator.telemetry.watcher import SyncerWatcher

type Obj = dict[str, Any]

KEY = ("default", "quad")
HOME = "home"
LINK = "link"
STEP_MS: dict[str, object] = {"QUADRATIC_STEP_MS": "50"}


@dataclass
class SeveralClusters:
    folder: Path
    planes: Mapping[str, ControlPlane]
    link: Link
    """By what all other clusters reach the syncer."""
    clusters: dict[str, KubeCluster] = field(default_factory=dict)
    kubeconfigs: Mapping[str, Path] = field(default_factory=dict)
    _operators: dict[str, contextlib.ExitStack] = field(default_factory=dict)

    @property
    def home(self) -> KubeCluster:
        return self.clusters[HOME]

    def start_operator(self, cluster: str) -> OperatorReplica:
        stack = self._operators.setdefault(cluster, contextlib.ExitStack())
        known = self.kubeconfigs if cluster == HOME else None
        return stack.enter_context(operator(self.planes[cluster], self.folder / cluster, f"operator-{time.time_ns()}", kubeconfigs=known))

    def kill_operator(self, cluster: str) -> None:
        self._operators.pop(cluster).close()

    def cuts(self, part: str) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
        """Name of what is cut -> how the cut begins and ends."""
        home, there = self.planes[HOME], self.planes[part]
        return {
            "home's API server": (home.stop_api_server, home.start_api_server),
            f"{part}'s API server": (there.stop_api_server, there.start_api_server),
            LINK: (self.link.cut, self.link.heal),
            "home's operator": (lambda: self.kill_operator(HOME), lambda: self.start_operator(HOME)),
            f"{part}'s operator": (lambda: self.kill_operator(part), lambda: self.start_operator(part)),
        }

    async def diloco(self, *words: str) -> str:
        """What `kubectl diloco WORDS` prints at home to a user whose kubeconfig has a context for each cluster."""
        path = self.folder / "kubeconfig"
        path.write_text(json.dumps(merged({name: plane.kubeconfig for name, plane in self.planes.items()})))
        return await self.home.kubectl("diloco", *words, "--kubeconfig", str(path))

    @contextlib.asynccontextmanager
    async def syncer(self, part: str) -> AsyncIterator[Callable[[], Report]]:
        """What the syncer reports, asked at its pod by the certificate of a part: no cut hides it."""
        secret = self.planes[part].request("GET", "/api/v1/namespaces/default/secrets/quad-home")
        found, host = project_part_secret(secret), syncer_of(self.planes[HOME], "quad")()
        assert found is not None
        assert found.home is not None, found.problem
        assert host is not None
        home = found.home
        watcher = SyncerWatcher(now=time.time, rng=random.random)
        watcher.follow(KEY, Endpoint("", host, home.job.uid, home.host_name, home.identity, home.roots))

        def latest() -> Report:
            report = watcher.latest(KEY)
            assert report is not None
            return report

        try:
            await seen(lambda: watcher.latest(KEY) is not None, "the syncer's first report")
            yield latest
        finally:
            await watcher.close()

    async def finish(self) -> Obj:
        """A learner outside joins and ends the job. Return the job at home once all clusters say that it is complete."""
        bundle = self.folder / "finisher"
        await self.home.kubectl("diloco", "join-bundle", "quad", "finisher", "--output", str(bundle))
        with a_plain_process(bundle, QUADRATIC_FINISH_AT_STEP="3") as process:
            found = [await cluster.job("quad", is_true("Complete")) for cluster in self.clusters.values()]
            assert await asyncio.to_thread(process.wait, WAIT_SECONDS) == 0
        return found[0]


def units_of(report: Report) -> dict[str, int]:
    """Unit that contributes -> its attempt."""
    return {unit.unit: unit.attempt for unit in report.units.values() if unit.phase is UnitPhase.CONTRIBUTING}


async def seen(holds: Callable[[], bool], what: str) -> None:
    """Return once it is so, while reports come."""
    await asyncio.to_thread(until, holds, what, WAIT_SECONDS)


def all_contribute(units: int) -> Callable[[Obj | None], bool]:
    return lambda job: bool((job or {}).get("status", {}).get("learners", {}).get("contributing") == units)


def kubeconfig_of_home(there: ControlPlane) -> Path:
    """What the operator at home may do in another cluster: what docs/parts.md tells a person to allow, and no more."""
    [rights] = [text for _, text, _, _ in fences("docs/parts.md") if "kind: Role\n" in text]
    there.kubectl("apply", "-f", "-", input=rights)
    return there.kubeconfig_for(there.token("default", "diloco-home"), "diloco-home")


def merged(kubeconfigs: Mapping[str, Path]) -> Obj:
    """One kubeconfig, with the only context of each of these under its name here. The first is the current one."""
    contents = {name: json.loads(path.read_text()) for name, path in kubeconfigs.items()}
    return {
        "clusters": [{**content["clusters"][0], "name": name} for name, content in contents.items()],
        "users": [{**content["users"][0], "name": name} for name, content in contents.items()],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}} for name in contents],
        "current-context": next(iter(contents)),
    }


@contextlib.asynccontextmanager
async def several_clusters(
    folder: Path, units: Mapping[str, int], environment: Mapping[str, object] = STEP_MS
) -> AsyncIterator[SeveralClusters]:
    """The job `quad` trains. `units`: cluster -> how many units train there, `HOME` first. `environment`: of its program."""
    with contextlib.ExitStack() as stack:
        for name in units:
            (folder / name).mkdir()
        planes = {name: stack.enter_context(ControlPlane(folder / f"plane-{name}")) for name in units}
        others = [name for name in units if name != HOME]
        known = [{"name": name, "secretName": name, "namespaces": {"default": "default"}} for name in others]
        for name, plane in planes.items():
            install_chart(plane, clusters=known if name == HOME else (), progressInterval="500ms")
            plane.kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=180s")
        address, link = stack.enter_context(load_balancer(syncer_of(planes[HOME], "quad")))
        scene = SeveralClusters(folder, planes, link, kubeconfigs={name: kubeconfig_of_home(planes[name]) for name in others})
        async with contextlib.AsyncExitStack() as nodes:
            for name, count in units.items():
                fleet = a_fleet(tpus=count, gpus=0)
                scene.clusters[name] = await nodes.enter_async_context(kube_cluster(planes[name], folder / name, fleet))
            stack.enter_context(_stopping(scene, list(units)))
            for name in units:
                scene.start_operator(name)
            await scene.home.apply(a_job_over(units, address, environment))
            await scene.home.job("quad", all_contribute(sum(units.values())))
            yield scene


@contextlib.contextmanager
def _stopping(scene: SeveralClusters, clusters: Sequence[str]) -> Iterator[None]:
    try:
        yield
    finally:
        for name in clusters:
            if name in scene._operators:
                scene.kill_operator(name)


def a_job_over(units: Mapping[str, int], address: str, environment: Mapping[str, object]) -> Obj:
    job = a_quadratic_job(units={"v5p": units[HOME]}, steps=1_000_000, environment=dict(environment))
    [pool] = job["spec"]["pools"]
    job["spec"]["pools"] += [
        {**pool, "name": f"at-{name}", "cluster": name, "learners": {"max": count}} for name, count in units.items() if name != HOME
    ]
    job["spec"]["learners"] = {**job["spec"]["learners"], "max": sum(units.values()), "outside": ["finisher"]}
    job["spec"]["syncer"] = {"externalAddress": address}
    return job
