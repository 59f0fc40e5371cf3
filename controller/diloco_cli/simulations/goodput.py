"""Which units, pools, H, coding and quorum give a job the most tokens per hour on a fleet: a bounded search over simulations.

Three groups of settings are varied one after the other, each with the others as they are best so far, until nothing changes: the hardware
(pools and number of units), the exchange (H and coding), and the quorum. A simulation is made once.

See docs/decisions/0214-plan.md.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from diloco.contract import Training
from diloco.simulation.fleet import simulate
from diloco.simulation.job import Outcome
from diloco.simulation.unit import TOKENS
from diloco_operator.kube.client import Obj
from diloco_operator.reconcile import parse_job

from diloco_cli.simulations.assumptions import Assumptions
from diloco_cli.simulations.inputs import BadInput, JobOnFleet, numbers_of_units
from diloco_cli.simulations.placement import SimulatedOperator

type Compression = Literal["None", "BFloat16", "Int4"]

SYNC_INTERVALS: Final = (10, 30, 100)
"""H beside that of the job: those of which it was published what models learn with them (arXiv 2503.09799)."""
COMPRESSIONS: Final[tuple[Compression, ...]] = ("BFloat16", "Int4")
NOISE: Final = 0.01
"""Two settings whose tokens differ by less, relative, are equal: then the cheaper one is taken."""
_MOST_HARDWARE: Final = 16
_MOST_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the units run on, as the operator places them."""

    pools: tuple[str, ...]
    """Which the job may use."""
    most: int
    """The most of units."""
    units: int
    """That have slices at first."""
    by_pool: tuple[tuple[str, int], ...]
    accelerators: int
    """The accelerators of these units."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One thing to try."""

    hardware: Hardware
    sync_interval: int
    compression: Compression
    quorum: int

    def training(self, training: Training) -> Training:
        """Return the training of the job with these settings. There are at most as many fragments as steps between two syncs, and an
        exchange ends before the next one of its fragment."""
        return training.model_copy(
            update={
                "sync_interval": self.sync_interval,
                "fragments": min(training.fragments, self.sync_interval),
                "overlap_steps": min(training.overlap_steps, self.sync_interval - 1),
                "compression": self.compression,
                "quorum": self.quorum,
            }
        )


@dataclass(frozen=True, slots=True)
class Yield:
    """What settings come to."""

    settings: Settings
    outcome: Outcome
    tokens_per_hour: float
    """That come into merges."""

    @property
    def bytes_per_second(self) -> float:
        """Return the bytes per second of all units and the syncer together."""
        return (self.outcome.up_bits + self.outcome.down_bits) / 8 / self.outcome.seconds

    @property
    def tokens_per_accelerator_hour(self) -> float:
        """How many come into merges for each hour of an accelerator, whether it works or not."""
        return self.tokens_per_hour / self.settings.hardware.accelerators


@dataclass(frozen=True, slots=True)
class Found:
    """What a search has come to."""

    best: Yield
    as_in_file: Yield
    hardware: tuple[Yield, ...]
    """The best one, and those that differ from it in their hardware."""
    exchange: tuple[Yield, ...]
    """The best one, and those that differ from it in H or coding."""
    quorum: tuple[Yield, ...]
    simulations: int


def search(given: JobOnFleet, assumptions: Assumptions, step_tokens: int) -> Found:
    """Search from the settings of the job, with all units that have slices. `step_tokens`: of a unit in a step. Raises `BadInput` where
    the job's minimum does not fit."""
    return _Search(given, assumptions, step_tokens).run()


class _Search:
    def __init__(self, given: JobOnFleet, assumptions: Assumptions, step_tokens: int) -> None:
        self._given = given
        self._assumptions = assumptions
        self._step_tokens = step_tokens
        self._hardware = hardware_of(given)
        spec = given.spec
        asked = spec.training
        self._own = Settings(self._hardware[0], asked.sync_interval, asked.compression, min(asked.quorum, self._hardware[0].units))
        self._conditions = assumptions.on(SimulatedOperator(given.manifest, given.nodes, spec.learners.max))
        self._yields: dict[Settings, Yield] = {}

    def run(self) -> Found:
        best = self._own
        for _ in range(_MOST_ROUNDS):
            before = best
            for group in (self._other_hardware, self._other_exchange, self._other_quorum):
                best = self._best_of(group(best))
            if best == before:
                break
        of = self._yield_of
        hardware, exchange, quorum = (
            tuple(of(each) for each in group(best)) for group in (self._other_hardware, self._other_exchange, self._other_quorum)
        )
        return Found(of(best), of(self._own), hardware, exchange, quorum, len(self._yields))

    # --- what is tried ------------------------------------------------------------------------------------------------

    def _other_hardware(self, settings: Settings) -> list[Settings]:
        return [replace(settings, hardware=each, quorum=min(settings.quorum, each.units)) for each in self._hardware]

    def _other_exchange(self, settings: Settings) -> list[Settings]:
        intervals = sorted({self._own.sync_interval, *SYNC_INTERVALS})
        compressions = dict.fromkeys((self._own.compression, *COMPRESSIONS))
        return [replace(settings, compression=each, sync_interval=h) for each in compressions for h in intervals]

    def _other_quorum(self, settings: Settings) -> list[Settings]:
        units = settings.hardware.units
        quorums = {1, min(self._own.quorum, units), settings.quorum, (units + 1) // 2, units}
        return [replace(settings, quorum=each) for each in sorted(quorums)]

    # --- which is best ------------------------------------------------------------------------------------------------

    def _best_of(self, tried: Iterable[Settings]) -> Settings:
        """Return the cheapest of those that have the most tokens but for noise."""
        found = [self._yield_of(each) for each in tried]
        most = max(each.tokens_per_hour for each in found)
        return min((each for each in found if each.tokens_per_hour >= (1 - NOISE) * most), key=self._cost).settings

    def _cost(self, found: Yield) -> tuple[float, ...]:
        """Order by accelerators, then by changes of the file, then by bytes; what is equal in all has the order in which it was tried."""
        settings, own = found.settings, self._own
        changed = (
            (settings.hardware.pools != own.hardware.pools)
            + (settings.hardware.most != own.hardware.most)
            + (settings.sync_interval != own.sync_interval)
            + (settings.compression != own.compression)
            + (settings.quorum != own.quorum)
        )
        return settings.hardware.accelerators, changed, found.bytes_per_second

    def _yield_of(self, settings: Settings) -> Yield:
        if (known := self._yields.get(settings)) is None:
            known = self._yields[settings] = self._simulated(settings)
        return known

    def _simulated(self, settings: Settings) -> Yield:
        given, assumptions, hardware = self._given, self._assumptions, settings.hardware
        operator = SimulatedOperator(_with_pools(given.manifest, hardware.pools), given.nodes, hardware.most)
        groups = {group.name for group in operator.groups}
        conditions = replace(self._conditions, later={name: at for name, at in self._conditions.later.items() if name in groups})
        outcome = simulate(
            settings.training(given.spec.training), operator, operator.groups, conditions, assumptions.seconds, assumptions.seed
        )
        return Yield(settings, outcome, outcome.merged / TOKENS * self._step_tokens * 3600 / assumptions.seconds)


def hardware_of(given: JobOnFleet) -> list[Hardware]:
    """Return what is compared: first all pools of the job with all units that have slices, then with fewer units, then each smaller set of
    pools with all units that have slices in it. Each placement is there once, and none is below the job's minimum. Raises `BadInput` if
    there is none."""
    spec, found = given.spec, list[Hardware]()
    names = tuple(pool.name for pool in spec.pools)
    whole = _hardware(given, names, spec.learners.max)
    if whole is None or whole.units < spec.learners.min:
        operator = SimulatedOperator(given.manifest, given.nodes, spec.learners.max)
        raise BadInput(f"{given.name}: the minimum of {spec.learners.min} does not fit this fleet: {operator.message}")
    fewer = reversed(numbers_of_units(spec.learners.min, whole.units)[:-1])
    tried = itertools.chain(
        [whole],
        (_hardware(given, names, most) for most in fewer),
        (_hardware(given, pools, spec.learners.max) for pools in _sets(names)),
    )
    placements: set[tuple[tuple[str, int], ...]] = set()
    for each in tried:
        if each is not None and each.units >= spec.learners.min and each.by_pool not in placements:
            placements.add(each.by_pool)
            found.append(each)
        if len(found) == _MOST_HARDWARE:
            break
    return found


def _sets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield smaller sets of pools: first those that lack one, and all of a few."""
    for size in range(len(names) - 1, 0, -1):
        if size in (len(names) - 1, 1) or len(names) <= 4:
            yield from itertools.combinations(names, size)


def _hardware(given: JobOnFleet, pools: tuple[str, ...], most: int) -> Hardware | None:
    """Return what the operator gives the job on these pools; None: the job's minima do not allow that."""
    manifest = _with_pools(given.manifest, pools)
    if parse_job(manifest).spec is None:
        return None
    operator = SimulatedOperator(manifest, given.nodes, most)
    placed = operator.placed
    by_pool: Mapping[str, int] = operator.by_pool
    return Hardware(pools, most, len(placed), tuple(by_pool.items()), sum(unit.accelerators for unit in placed))


def _with_pools(job: Obj, pools: Sequence[str]) -> Obj:
    obj = copy.deepcopy(job)
    obj["spec"]["pools"] = [pool for pool in obj["spec"]["pools"] if pool["name"] in pools]
    return obj
