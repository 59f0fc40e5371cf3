"""[units-per-second] How fast the operator makes 1,000 jobs of 16 units, from nothing.

The time runs from the moment when 1,000 jobs are handed to the API until the last of 16,000 learner pods (one host to a unit) is created.
It covers watch, reconcile, placement, the certificates, every object of each job and its status. The in-memory API runs in the same process
and takes more of the time than the operator.

`certificate_share` is measured in the same run: the time to make the certificates of as many units alone, and to read them back from their
Secrets, over the time of the whole.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from diloco import contract
from diloco_operator.api import names
from diloco_operator.certificates.authority import Leaf
from diloco_operator.certificates.issuing import Issuer
from diloco_operator.certificates.view import project_certificates
from diloco_operator.kube.client import Obj
from diloco_operator.operator.certificate_writes import certificate_writes
from diloco_operator.plan import Create, IssueCertificates
from diloco_operator.reconcile import OperatorConfig

from benchmarks.figure import Figure
from benchmarks.simulated_cluster import NAMESPACE, POOL, UNITS, job, new_api, operating

LIMIT = 350.0
"""56 % of what an idle machine with 2 cores does (623), as the limit of 500 was of 944 before there were certificates."""


@dataclass(frozen=True, slots=True)
class Size:
    jobs: int
    runs: int


FULL = Size(jobs=1000, runs=3)
SMOKE = Size(jobs=3, runs=1)


async def make_all(jobs: int) -> float:
    """Return seconds until every learner pod of so many jobs is created."""
    api = await new_api(jobs * UNITS)
    wanted = jobs * UNITS
    made: set[str] = set()
    last = 0.0
    complete = asyncio.Event()

    def on_create(name: str, at: float) -> None:
        nonlocal last
        if not name.endswith("-syncer"):
            made.add(name)
            last = at
            if len(made) == wanted:
                complete.set()

    async with operating(api, kubelet=False, on_create=on_create):
        begun = time.perf_counter()
        for index in range(jobs):
            await api.create(names.DILOCO_JOBS, job(f"job-{index}"))
            await asyncio.sleep(0)
        await complete.wait()
    return last - begun


def make_certificates(jobs: int) -> float:
    """Return seconds for the certificates of so many jobs: an authority, the syncer's and one for each unit, made and read back."""
    issuer = Issuer(time.time, OperatorConfig().certificate_lifetime)
    begun = time.perf_counter()
    for index in range(jobs):
        name, uid = f"job-{index}", f"uid-{index}"
        syncer = Leaf(
            contract.TLS_IDENTITY_FILE, contract.syncer_identity(uid), (contract.syncer_host_name(name, NAMESPACE),), connects=False
        )
        units = [f"{POOL}-{unit}" for unit in range(UNITS)]
        learners = tuple(Leaf(names.learner_secret_key(unit, 1), contract.learner_identity(uid, unit, 1)) for unit in units)
        plan = [
            IssueCertificates(_secret(names.authority_secret_name(name)), uid, create_authority=True),
            IssueCertificates(_secret(names.syncer_secret_name(name)), uid, leaves=(syncer,)),
            IssueCertificates(_secret(names.learner_secret_name(name, POOL, units[0])), uid, leaves=learners),
        ]
        for write in certificate_writes(issuer, plan):
            assert isinstance(write, Create)
            project_certificates(write.obj)
    return time.perf_counter() - begun


def _secret(name: str) -> Obj:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}}


def measure(*, smoke: bool) -> Iterator[Figure]:
    """Yield the median of the runs."""
    size = SMOKE if smoke else FULL
    rates, shares = [], []
    for _ in range(size.runs):
        seconds = asyncio.run(make_all(size.jobs))
        rates.append(size.jobs * UNITS / seconds)
        shares.append(make_certificates(size.jobs) / seconds)
    value = statistics.median(rates)
    details = {"jobs": size.jobs, "units": UNITS, "worst": min(rates), "certificate_share": statistics.median(shares)}
    yield Figure("units-per-second", value, "units/s", LIMIT, value >= LIMIT, size.runs, details)
