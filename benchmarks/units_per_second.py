"""[units-per-second] How fast the operator makes 1,000 jobs of 16 units, from nothing.

The time is the processor time of the process, from the moment when 1,000 jobs are handed to the API until the last of 16,000 learner pods
(one for each unit) is created. It covers watch, reconcile, placement, the certificates, every object of each job and its status. The
in-memory API runs in the same process and takes more of the time than the operator.

The value is the number of units that are made in the processor time of 1,000 passes of `reference`, one to two seconds of a core. Beside
the work one pass runs every 50 ms, and its time is subtracted. The limit, 15 % below what is reached, finds a change of the code that makes
a unit dearer by more than the noise of a run. `by_the_clock` in the line is the rate in wall-clock time.

`certificate_share` is measured in the same run: the time that it takes only to make the certificates of as many units, and to read them
back from their Secrets, over the time of the whole.
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

from benchmarks import reference
from benchmarks.figure import Figure
from benchmarks.simulated_cluster import NAMESPACE, POOL, UNITS, job, new_api, operating

LIMIT = 790.0
SAMPLE_EVERY = 0.05
"""Seconds between two passes of the reference."""


@dataclass(frozen=True, slots=True)
class Size:
    jobs: int
    runs: int


FULL = Size(jobs=1000, runs=3)
SMOKE = Size(jobs=3, runs=1)


@dataclass(frozen=True, slots=True)
class Made:
    """Seconds that it took to make all pods."""

    elapsed: float
    processor: float
    """Processor time of all threads, without the passes of the reference."""
    of_a_pass: float
    """Processor time of a pass of the reference, the mean of all that ran meanwhile."""


async def make_all(jobs: int) -> Made:
    """Create the jobs, and measure until the operator has created every learner pod."""
    api = await new_api(jobs * UNITS)
    wanted = jobs * UNITS
    created: set[str] = set()
    passes: list[float] = []
    complete = asyncio.Event()
    ended: list[Made] = []

    def on_create(name: str, at: float) -> None:
        if not name.endswith("-syncer"):
            created.add(name)
            if len(created) == wanted and not ended:
                processor = time.process_time() - processor_begun - sum(passes)
                ended.append(Made(at - begun, processor, statistics.mean(passes)))
                complete.set()

    async def sample() -> None:
        while True:
            passes.append(reference.pass_seconds())
            await asyncio.sleep(SAMPLE_EVERY)

    async with operating(api, kubelet=False, on_create=on_create):
        passes.append(reference.pass_seconds())
        begun, processor_begun = time.perf_counter(), time.process_time() - sum(passes)
        sampling = asyncio.create_task(sample())
        for index in range(jobs):
            await api.create(names.DILOCO_JOBS, job(f"job-{index}"))
            await asyncio.sleep(0)
        await complete.wait()
        sampling.cancel()
    return ended[0]


def make_certificates(jobs: int) -> float:
    """Make the certificates of `jobs` jobs and read them back: for each an authority, the syncer's, and one for each unit. Return the
    seconds of processor time."""
    issuer = Issuer(time.time, OperatorConfig().certificate_lifetime)
    begun = time.process_time()
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
    return time.process_time() - begun


def _secret(name: str) -> Obj:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}}


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    units = size.jobs * UNITS
    runs, shares = [], []
    for _ in range(size.runs):
        made = asyncio.run(make_all(size.jobs))
        runs.append(made)
        shares.append(make_certificates(size.jobs) / made.processor)
    rates = [units * 1000 * made.of_a_pass / made.processor for made in runs]
    value = statistics.median(rates)
    details = {
        "jobs": size.jobs,
        "units": UNITS,
        "worst": min(rates),
        "by_the_clock": statistics.median(units / made.elapsed for made in runs),
        "certificate_share": statistics.median(shares),
    }
    yield Figure("units-per-second", value, "units per 1,000 passes of benchmarks/reference.py", LIMIT, value >= LIMIT, size.runs, details)
