"""The syncer's engine on virtual time, with learners that count what they train, and deaths of any process at any moment.

The model is a record. Each local step of a learner has a place of its own in every fragment. A learner's push adds 1 at the places of all
steps of its session so far, and with a plain mean and without momentum nothing is ever taken away. So a fragment holds more than 0 at a
step's place exactly if it has merged a contribution of that session that was read at or after that step: what a commit promises can be
read from the parameters of a snapshot, independently of the ledger in it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from builders.simulated_unit import PLACES, STEP_SECONDS, Learner, Steps, UnitSpeed
from builders.virtual_time import run_virtual
from diloco import contract
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.contract import JobFile, Training
from diloco.protocol.tls import TlsFiles
from diloco.snapshots.writer import SnapshotData, SnapshotWriter
from diloco.syncer.config import SyncerConfig, Timeouts
from diloco.syncer.job.engine import Engine, RunOutcome
from diloco.syncer.job.restore import open_tape, restore, snapshot_places
from diloco.syncer.reporting.event_writer import EventWriter
from diloco.syncer.streams.changes import Changes


@dataclass(slots=True)
class Account:
    """What was compared at every snapshot: the parameters against the ledger."""

    moments: int = 0
    """Snapshots that were compared."""
    compared: int = 0
    """Committed samples in them, summed up."""
    committed_and_missing: int = 0
    """Samples that a ledger has as committed, and that its parameters do not hold in every fragment."""
    missing_and_committed: int = 0
    """Samples that every fragment holds, and that the ledger does not have as committed."""
    trained_twice: int = 0
    """Samples that every fragment holds from two local steps."""
    wrong_tokens: int = 0
    """Difference of the tokens, as the learners count them."""
    longest_open: int = 0
    """Outer steps from the training of a sample to the newest snapshot that did not have it as committed, at most. Of a run without
    trouble, in which every sample is trained once."""

    @property
    def wrong(self) -> int:
        return self.committed_and_missing + self.missing_and_committed + self.trained_twice + self.wrong_tokens


class _Inline(ThreadPoolExecutor):
    """Does at once what a thread would: virtual time does not pass meanwhile."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*arguments, **keywords))
        except Exception as error:  # noqa: BLE001 -- raised where the result is awaited
            done.set_exception(error)
        return done


class _ComparingWriter(SnapshotWriter):
    """Compares every snapshot that the engine takes."""

    compare: Callable[[SnapshotData], None]

    def begin(self, data: SnapshotData, then: Callable[[], None]) -> None:
        self.compare(data)
        super().begin(data, then)

    async def save(self, data: SnapshotData) -> bool:
        self.compare(data)
        return await super().save(data)


class World:
    """One job: a syncer that may die, learners that may die, and links that may break."""

    def __init__(self, directory: Path, seed: int, training: Training, units: Sequence[UnitSpeed | None]) -> None:
        """`units`: None for one of random speed."""
        self.random = random.Random(seed)
        self.training = training
        self.layout = Layout(TensorSpec(f"w{p}", (PLACES,)) for p in range(training.fragments))
        self.steps = Steps()
        self.account = Account()
        self.engine: Engine | None = None
        self.outcome: RunOutcome | None = None
        self.told: Counter[str] = Counter()
        """What happened to the processes, by kind."""
        self.answered_ahead = 0
        """Pulls that found what a unit had staged for them."""
        self.settled = 0
        """Outer step from which on `share_of_merges` and `Account.longest_open` count: a unit needs some steps to know its pace."""
        self._before: Counter[str] | None = None
        self._directory = directory
        self._config = SyncerConfig(
            job=JobFile(name="job", namespace="default", uid="uid", training=training),
            tls=TlsFiles(directory),
            host="127.0.0.1",
            port=0,
            state_dir=directory,
            termination_log=None,
            timeouts=Timeouts(reconnect_window=4 * STEP_SECONDS, farewell=600.0),
        )
        self._engine_task: asyncio.Task[RunOutcome] | None = None
        self._learners: dict[str, Learner] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._speeds = {f"u-{i}": speed for i, speed in enumerate(units)}
        self._units = list(self._speeds)
        self._attempts = dict.fromkeys(self._units, 0)

    async def run(self, trouble: int) -> None:
        """To the end of the job, with `trouble` incidents at random moments."""
        asyncio.get_running_loop().set_default_executor(_Inline())
        self._start_syncer()
        for unit in self._units:
            self._start_learner(unit)
        for _ in range(trouble):
            await asyncio.sleep(self.random.uniform(0.2, self.training.steps * STEP_SECONDS / trouble))
            await self._incident()
        while self.outcome is not RunOutcome.COMPLETE:
            assert self._engine_task is not None
            self.outcome = await self._engine_task
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    @property
    def units(self) -> list[str]:
        """Their names."""
        return list(self._units)

    def learner(self, unit: str) -> Learner:
        """The unit's newest process."""
        return self._learners[unit]

    @property
    def t(self) -> int:
        """Outer steps taken."""
        return self.engine.exchanges.t if self.engine is not None else 0

    def share_of_merges(self, unit: str) -> float:
        """The merges that hold a contribution of the unit, in parts of those of u-0, the fastest, which is in every merge."""
        merges = self._contributions() - (self._before or Counter())
        return merges[unit] / merges["u-0"]

    def _contributions(self) -> Counter[str]:
        assert self.engine is not None
        assert self.engine.exchanges.core is not None
        return Counter({unit: one.contributions for unit, one in self.engine.exchanges.core.coordinator.contributions.items()})

    def compare(self, data: SnapshotData) -> None:
        """The parameters of a snapshot against its ledger."""
        arrays = dict(zip(data.tensors.shapes, data.tensors.arrays(), strict=True))
        held = np.logical_and.reduce([arrays[f"value/w{p}"] > 0 for p in range(self.training.fragments)])
        places = np.flatnonzero(held).tolist()
        merged = Counter(number for place in places for number in self.steps.numbers[place])
        ledger = data.meta["ledger"]
        committed = {number for start, end in ledger["committed"] for number in range(start, end)}
        account = self.account
        account.moments += 1
        account.compared += len(committed)
        if self._before is None and data.t >= self.settled:
            self._before = self._contributions()
        trained = zip(self.steps.t, self.steps.numbers, strict=True)
        waiting = (t for t, numbers in trained if t >= self.settled and not committed.issuperset(numbers))
        account.longest_open = max(account.longest_open, data.t - next(waiting, data.t))
        account.committed_and_missing += len(committed - merged.keys())
        account.missing_and_committed += len(merged.keys() - committed)
        account.trained_twice += sum(times > 1 for times in merged.values())
        account.wrong_tokens += abs(
            sum(self.steps.tokens[place] for place in places) - sum(tokens for _, tokens, _ in ledger["units"].values())
        )

    # --- processes ----------------------------------------------------------------------------------------------------

    async def _incident(self) -> None:
        if self._engine_task is not None and self._engine_task.done():
            return
        what = self.random.choice(["syncer killed", "syncer stopped", "learner killed", "learner killed", "learner drained", "link cut"])
        self.told[what] += 1
        unit = self.random.choice(self._units)
        match what:
            case "syncer killed" | "syncer stopped":
                await self._end_syncer(stop=what == "syncer stopped")
                await asyncio.sleep(self.random.uniform(0.0, 3.0))
                self._start_syncer()
            case "learner killed":
                self._tasks[unit].cancel()
                await asyncio.sleep(self.random.uniform(0.0, 8.0))
                self._start_learner(unit)
            case "learner drained":
                await self._learners[unit].drain()
                self._tasks[unit].cancel()
                self._start_learner(unit)
            case "link cut":
                self._learners[unit].cut()

    def _start_syncer(self) -> None:
        store, remote = snapshot_places(self._config)
        state = restore(self._config, store, remote)
        changes = Changes()
        writer = _ComparingWriter(store, remote, changes.notify, state.snapshot)
        writer.compare = self.compare
        t = state.core.t if state.core is not None else 0
        events = EventWriter(self._directory / "tensorboard", steps=self.training.steps, t=t, changed=changes.notify)
        process = self.random.randbytes(16)
        tape = open_tape(self._config, state, process, changes.notify)
        self.engine = Engine(self._config, state, writer, tape, events, changes, process, asyncio.get_running_loop().time)
        self._engine_task = asyncio.create_task(self.engine.run())

    async def _end_syncer(self, *, stop: bool) -> None:
        assert self.engine is not None
        assert self._engine_task is not None
        if stop:
            self.engine.stop()
        else:
            self._engine_task.cancel()
        await asyncio.gather(self._engine_task, return_exceptions=True)
        self.engine = None
        for learner in self._learners.values():
            learner.cut()

    def _start_learner(self, unit: str) -> None:
        self._attempts[unit] += 1
        learner = self._learners[unit] = Learner(self, unit, self._attempts[unit], self._speeds[unit])
        self._tasks[unit] = asyncio.create_task(learner.run())


def a_training(steps: int, *, interval: int, fragments: int, overlap: int, grace: float = 1.0, every_steps: int = 3) -> Training:
    """`every_steps`: outer steps between snapshots."""
    return Training(
        steps=steps,
        sync_interval=interval,
        fragments=fragments,
        overlap_steps=overlap,
        quorum=1,
        compression="BFloat16",
        merge=contract.Merge(method="Average", embeddings="Average"),
        outer_optimizer=contract.OuterOptimizer(learning_rate=1.0, momentum=0.0),
        checkpoint=contract.Checkpoint(every_steps=every_steps, keep=2),
        grace=contract.Grace(max_steps=grace, safety_factor=0.8),
    )


def simulate(directory: Path, seed: int, *, steps: int = 120, units: int = 3, trouble: int = 12, slow: bool = False) -> World:
    """A whole job with random H, P and tau, and with deaths at random moments. Deterministic. `slow`: all units but one are so slow that
    they stage ahead."""
    choice = random.Random(seed)
    interval = choice.choice([16, 24] if slow else [2, 4, 6, 9])
    fragments = 8 if slow else choice.randint(1, min(4, interval))
    training = a_training(steps, interval=interval, fragments=fragments, overlap=choice.randrange(4 if slow else interval))
    speeds = [UnitSpeed(choice.uniform(5.0, 10.0)) if slow and unit else None for unit in range(units)]
    world = World(directory, seed, training, speeds)
    run_virtual(world.run(trouble))
    return world


def share_of_one_slow_unit(directory: Path, slow: float, grace: float, *, steps: int = 240, seed: int = 1) -> float:
    """The share of the merges with a contribution of a unit whose steps take `slow` times those of three others, at P = H = 24, where the
    grace window is `grace` mean steps at most."""
    fast = UnitSpeed(1.0, jitter=0.05, wire_seconds=0.05)
    # Nothing is read from snapshots but who had contributed at the first one, and each takes a fifth of a second.
    training = a_training(steps, interval=24, fragments=24, overlap=2, grace=grace, every_steps=60)
    world = World(directory, seed, training, [fast, fast, fast, UnitSpeed(slow, jitter=0.05, wire_seconds=0.05)])
    world.settled = 60
    run_virtual(world.run(0))
    return world.share_of_merges("u-3")
