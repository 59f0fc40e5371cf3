"""[ledger-exact] A snapshot's parameters hold exactly the samples that its ledger has as trained.

The syncer's engine runs on virtual time with simulated learners. Syncer and learners are killed, stopped and drained, and links are cut, at
random moments. In every fourth run all units but one are so slow that they stage fragments ahead. The learners write their steps into the
parameters, and at every snapshot these are compared with the ledger. The value is the number of samples and tokens on which the two differ,
over all snapshots of all runs.
"""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builders.engine_simulation import Account, simulate

from benchmarks.figure import Figure


@dataclass(frozen=True, slots=True)
class Size:
    runs: int
    least_compared: int
    """Committed samples that must be compared. With fewer, nothing was measured."""


FULL = Size(runs=100, least_compared=100_000)
SMOKE = Size(runs=2, least_compared=1)


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    accounts: list[Account] = []
    incidents: Counter[str] = Counter()
    logging.getLogger("diloco").setLevel(logging.ERROR)  # losing units is the purpose here, so do not log each
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(size.runs):
            world = simulate(Path(directory) / str(seed), seed, slow=seed % 4 == 3)
            accounts.append(world.account)
            incidents += world.told
    compared = sum(account.compared for account in accounts)
    wrong = sum(account.wrong for account in accounts)
    details = {
        "committed_and_missing": sum(account.committed_and_missing for account in accounts),
        "missing_and_committed": sum(account.missing_and_committed for account in accounts),
        "trained_twice": sum(account.trained_twice for account in accounts),
        "wrong_tokens": sum(account.wrong_tokens for account in accounts),
        "snapshots": sum(account.moments for account in accounts),
        "compared": compared,
        "incidents": dict(sorted(incidents.items())),
    }
    within = wrong == 0 and compared >= size.least_compared
    yield Figure("ledger-exact", float(wrong), "samples and tokens", 0.0, within, size.runs, details)
