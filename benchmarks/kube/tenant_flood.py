"""[tenant-flood] How much longer do one tenant's jobs wait while another tenant floods the operator?

The other tenant brings 1, 3 and then 10 jobs whose syncers stream reports of 10 MiB as fast as they are read; then 8 scrapers of /metrics
without a right to it, and 230 silent connections; then 10,000 jobs that wait for hardware. Meanwhile units of the victim's job fail, one
after the other, and each waits for its successor. The value is the largest median wait of a stage over the median before the flood; the
operator may not lose its lease. In the same run, a program that does nothing else replaces pods of its own, in turn with the operator: the
growth of its median wait is due to the API server and the processor.

The operator does not answer for what a tenant's requests cost the API server: 64 creates at once, from a user without limits, make every
other request wait for a second on two cores. So the tenant creates its jobs as fast as it gets answers, from a separate process, with a
token of its namespace, and the API server serves it one request at a time (API priority and fairness).

[loop-lag-operator] The longest hold of the operator's event loop during all of that, from the operator's start.
"""

from __future__ import annotations

import asyncio
import base64
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from builders.child_processes import die_with_parent
from builders.operator_process import DEFAULT, OperatorReplica
from diloco.contract import TLS_IDENTITY_FILE, TLS_ROOTS_FILE
from diloco_operator.api import names
from diloco_operator.api.names import OPERATOR_LEASE
from diloco_operator.kube.client import Resource
from diloco_operator.kube.lease import LEASES
from diloco_operator.operator.job_context import WRITES_PER_SECOND

from benchmarks import ROOT
from benchmarks.figure import Figure, percentile, rounded
from benchmarks.kube.bare_operator import add_bare_pods
from benchmarks.kube.noisy_neighbour import Neighbour
from benchmarks.kube.rig import Rig, job, rig, running, watching
from benchmarks.reference import usual_figure

LIMIT = 2.0
LAG_LIMIT = 250.0
"""Milliseconds."""
JOB = "quiet"
"""The victim's job."""
VICTIM = "victim"
BARE = "bare"
"""Namespace of pods like the victim's, which `bare_operator` replaces in place of the operator."""
CROWD = "many"
"""Namespace of the jobs that wait for hardware."""
FEW_SEATS = ("--max-requests-inflight=100", "--max-mutating-requests-inflight=50")
"""Options of the API server for at most 150 requests at once. A tenant with one of 246 shares then has one seat."""
_ROLES = Resource("rbac.authorization.k8s.io", "v1", "Role", "roles")
_ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
_LEVELS = Resource("flowcontrol.apiserver.k8s.io", "v1", "PriorityLevelConfiguration", "prioritylevelconfigurations", namespaced=False)
_FLOWS = Resource("flowcontrol.apiserver.k8s.io", "v1", "FlowSchema", "flowschemas", namespaced=False)
_BEFORE_OTHERS = 500
"""Precedence of the FlowSchema. The built-in schemas for ServiceAccounts have 9000."""


@dataclass(frozen=True, slots=True)
class Size:
    victim_units: int
    failures: int
    """Failures in each stage."""
    syncers: tuple[int, ...]
    """Hostile syncers, one stage after the other."""
    scrapers: int
    silent: int
    """Connections that stay silent."""
    jobs: int
    pause: float
    """Seconds between two failures."""


FULL = Size(victim_units=16, failures=30, syncers=(1, 3, 10), scrapers=8, silent=230, jobs=10_000, pause=2 / WRITES_PER_SECOND)
"""A failure makes the operator write twice. With a shorter pause the victim would wait for the limit of its own writes, flood or not."""
SMOKE = Size(victim_units=2, failures=2, syncers=(1,), scrapers=1, silent=4, jobs=8, pause=0.0)


@dataclass(slots=True)
class Stage:
    """Milliseconds that each failed pod waited for its successor."""

    units: list[float] = field(default_factory=list)
    """Waits of the victim's job."""
    bare: list[float] = field(default_factory=list)
    """Waits of the pods that `bare_operator` replaces. They grow only with the load of the API server and the processor."""


@dataclass(slots=True)
class Flood:
    """All measurements. Times are in seconds."""

    calm: Stage
    """Before the flood."""
    stages: dict[str, Stage] = field(default_factory=dict)
    renewal_gap: float = 0.0
    """The longest time between two renewals of the lease."""
    transitions: int = 0
    longest_hold: float = 0.0
    """The longest hold of the event loop."""
    jobs_seconds: float = 0.0
    """Time in which the jobs that wait for hardware were created."""
    left: float = 0.0
    """Jobs that were still in the operator's queue at the end."""


async def tenant(bench: Rig, namespace: str) -> Path:
    """Return the kubeconfig of a user who may only create jobs in the namespace, and whom the API server serves one request at a time.

    It is the namespace's default ServiceAccount, with one share of the API server's seats and no borrowed ones.
    """
    name = f"tenant-{namespace}"
    account = {"name": "default", "namespace": namespace}
    create = bench.client.create
    rules = [{"apiGroups": [names.DILOCO_JOBS.group], "resources": [names.DILOCO_JOBS.plural], "verbs": ["create"]}]
    await create(_ROLES, {"metadata": {"name": name, "namespace": namespace}, "rules": rules})
    binding = {
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": _ROLES.group, "kind": _ROLES.kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", **account}],
    }
    await create(_ROLE_BINDINGS, binding)
    queuing = {"queues": 1, "handSize": 1, "queueLengthLimit": 1000}
    limited = {
        "nominalConcurrencyShares": 1,
        "lendablePercent": 0,
        "borrowingLimitPercent": 0,
        "limitResponse": {"type": "Queue", "queuing": queuing},
    }
    await create(_LEVELS, {"metadata": {"name": name}, "spec": {"type": "Limited", "limited": limited}})
    requests = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}]
    rule = {"subjects": [{"kind": "ServiceAccount", "serviceAccount": account}], "resourceRules": requests}
    schema = {"priorityLevelConfiguration": {"name": name}, "matchingPrecedence": _BEFORE_OTHERS, "rules": [rule]}
    await create(_FLOWS, {"metadata": {"name": name}, "spec": schema})
    token = await asyncio.to_thread(bench.plane.token, namespace, account["name"])
    return bench.plane.kubeconfig_for(token, name)


async def jobs_made(kubeconfig: Path, count: int) -> float:
    """Let the tenant create `count` jobs that wait for hardware, and return the seconds that it took."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.kube.job_flood", str(kubeconfig), CROWD, str(count)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        preexec_fn=die_with_parent,
    )
    out, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError("the process that makes jobs failed")
    return float(out)


@asynccontextmanager
async def processes(*arguments: str) -> AsyncIterator[None]:
    """Run `python -m …` for the time of the context, which begins at the program's first line of output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE, preexec_fn=die_with_parent
    )
    assert process.stdout is not None
    try:
        if not await process.stdout.readline():
            raise RuntimeError(f"{arguments[0]} did not start")
        yield
        if process.returncode is not None:
            raise RuntimeError(f"{arguments[0]} ended early")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def hostile_jobs(bench: Rig, folder: Path, first: int, last: int) -> None:
    """Create the jobs with these numbers and let their learners run. The certificate of each job's syncer goes into `folder`/NUMBER."""
    for number in range(first, last):
        namespace = await bench.namespace(f"hostile-{number}")
        async with watching(bench.client, namespace) as watch:
            await bench.client.create(names.DILOCO_JOBS, job("flood", namespace, 1))
            await watch.until(lambda: len(watch.added) == 1, "the hostile job's pod made")
        await bench.mark(await bench.pods(namespace), running)
        secret = await bench.client.get(names.SECRETS, namespace, names.syncer_secret_name("flood"))
        files = folder / str(number)
        files.mkdir()
        for name in (TLS_ROOTS_FILE, TLS_IDENTITY_FILE):
            (files / name).write_bytes(base64.b64decode(secret["data"][name]))


async def syncers_run(bench: Rig, first: int, last: int) -> None:
    """Mark the pods of these jobs' syncers as running, at the addresses of the hostile syncers."""
    for number in range(first, last):
        pod = await bench.client.get(names.PODS, f"hostile-{number}", names.syncer_pod_name("flood"))
        ip = address(number)
        await bench.mark([pod], lambda pod: running(pod) | {"podIP": ip, "podIPs": [{"ip": ip}]})  # noqa: B023 -- awaited within the turn


def address(number: int) -> str:
    return f"127.78.0.{number + 1}"


async def watch_lease(bench: Rig, flood: Flood) -> None:
    """Note the longest time between two renewals of the lease, until cancelled."""
    seen, since = None, time.monotonic()
    while True:
        lease = await bench.client.get(LEASES, "default", OPERATOR_LEASE)
        if (renewed := lease["spec"].get("renewTime")) != seen:
            seen, since = renewed, time.monotonic()
        flood.renewal_gap = max(flood.renewal_gap, time.monotonic() - since)
        flood.transitions = int(lease["spec"].get("leaseTransitions", 0))
        await asyncio.sleep(0.2)


async def flooded(size: Size) -> Flood:
    async with rig(*FEW_SEATS) as bench, AsyncExitStack() as stack:
        await bench.add_slices(size.victim_units + max(size.syncers))
        for namespace in (VICTIM, BARE, CROWD):
            await bench.namespace(namespace)
        operator = stack.enter_context(bench.operator(lead=DEFAULT))
        await asyncio.to_thread(operator.wait_leads)
        watch = await stack.enter_async_context(watching(bench.client, VICTIM))
        await bench.client.create(names.DILOCO_JOBS, job(JOB, VICTIM, size.victim_units))
        await watch.until(lambda: len(watch.added) == size.victim_units, "the victim's pods made")
        await add_bare_pods(bench, VICTIM, BARE)
        bare_watch = await stack.enter_async_context(watching(bench.client, BARE))
        await stack.enter_async_context(processes("benchmarks.kube.bare_operator", str(bench.plane.kubeconfig), BARE, JOB))
        neighbours = (
            Neighbour(bench, watch, JOB, VICTIM, size.victim_units),
            Neighbour(bench, bare_watch, JOB, BARE, size.victim_units),
        )
        for neighbour in neighbours:
            await neighbour.begin()
        return await stages(bench, operator, neighbours, size)


async def stages(bench: Rig, operator: OperatorReplica, neighbours: tuple[Neighbour, Neighbour], size: Size) -> Flood:
    async def wait(stage: Stage) -> None:
        for neighbour, waits in zip(neighbours, (stage.units, stage.bare), strict=True):
            await asyncio.sleep(size.pause / 2)
            waits.append((await neighbour.fail_one()).ms)

    async def waits() -> Stage:
        stage = Stage()
        for _ in range(size.failures):
            await wait(stage)
        return stage

    flood = Flood(calm=await waits())
    lease = asyncio.create_task(watch_lease(bench, flood))
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        begun = 0
        for count in size.syncers:
            await hostile_jobs(bench, folder, begun, count)
            served = [f"{folder / str(number)}={address(number)}" for number in range(begun, count)]
            await stack.enter_async_context(processes("benchmarks.kube.hostile_syncer", *served))
            await syncers_run(bench, begun, count)
            begun = count
            flood.stages[f"syncers_{count}"] = await waits()
        at = operator.address("/metrics")
        await stack.enter_async_context(processes("benchmarks.kube.scrapers", at, str(size.scrapers), str(size.silent)))
        flood.stages["scrapers"] = await waits()
        flooding = asyncio.create_task(jobs_made(await tenant(bench, CROWD), size.jobs))
        flood.stages["jobs_come"] = come = Stage()
        while not flooding.done():
            await wait(come)
        flood.jobs_seconds = await flooding
        flood.stages["jobs"] = await waits()
    lease.cancel()
    if lease.done():
        lease.result()
    flood.longest_hold = await asyncio.to_thread(operator.total, "diloco_operator_event_loop_longest_hold_seconds")
    flood.left = await asyncio.to_thread(operator.total, "workqueue_depth")
    return flood


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    flood = asyncio.run(flooded(size))
    calm, bare = percentile(flood.calm.units, 0.5), percentile(flood.calm.bare, 0.5)
    by_stage = flood.stages
    ratios = {name: percentile(stage.units, 0.5) / calm for name, stage in by_stage.items()}
    bare_ratios = {name: percentile(stage.bare, 0.5) / bare for name, stage in by_stage.items()}
    worst = max(ratios, key=lambda name: ratios[name])
    value = ratios[worst]
    details = {
        "bare": bare_ratios[worst],
        "calm_p50_ms": calm,
        "calm_p90_ms": percentile(flood.calm.units, 0.9),
        "bare_calm_p50_ms": bare,
        "ratios_p50": ratios,
        "bare_ratios_p50": bare_ratios,
        "p90_ms": rounded([percentile(stage.units, 0.9) for stage in by_stage.values()], 1),
        "longest_ms": rounded([max(stage.units) for stage in by_stage.values()], 1),
        "renewal_gap_s": flood.renewal_gap,
        "leases_lost": flood.transitions,
        "jobs_seconds": flood.jobs_seconds,
        "jobs_left": flood.left,
    }
    yield Figure("tenant-flood", value, "ratio", LIMIT, value <= LIMIT and flood.transitions == 0, 1, details)
    yield usual_figure("loop-lag-operator", 1e3 * flood.longest_hold, "ms", LAG_LIMIT)
