"""A job on virtual time whose units really train: a synthetic tape says when a unit's step ends, the driver of syncers what is merged.

Everything runs in one thread and in the order of virtual time, so that the same tape, job and models give the same bytes. Between units and
syncer nothing takes time, and no sample that was trained is trained again: numbers are dealt out when a step ends.

See docs/decisions/0209-simulator.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from diloco.algorithm.codec import Coding, encode, leave_rounding_error
from diloco.algorithm.core import Core
from diloco.algorithm.effects import Broadcast, Close, Decode, Effect, Merged, Pull, Refusal, Refused
from diloco.algorithm.events import Metadata, Seeded, Unusable
from diloco.algorithm.layout import Layout
from diloco.contract import Training
from diloco.learner.remainders import Remainders
from diloco.learner.store import Float32Array
from diloco.simulation.job import SimulatedJob
from diloco.simulation.unit import Hardware, SimulatedUnit
from numpy.random import default_rng
from numpy.typing import NDArray

from benchmarks.law.synthetic_tape import Fail, Slow, SyntheticTape


class TrainedModel(Protocol):
    """The model of one unit, and its inner optimizer."""

    def step(self, numbers: NDArray[np.int64], progress: float) -> None:
        """Train on the samples of these sequence numbers. `progress`: the share of the job that is done, 0..1."""
        ...

    def read(self, fragment: int) -> Float32Array:
        """Return the values of a fragment, float32 [size], which are the caller's."""
        ...

    def adopt(self, fragment: int, values: Float32Array) -> None:
        """Overwrite a fragment with float32 [size]."""
        ...

    def restart(self, donor: TrainedModel | None) -> None:
        """Begin as a new process, with the optimizer's state of a peer and the steps behind it; None: with none."""
        ...


class TrainedJob(SimulatedJob):
    """Trains the models of the units of a tape."""

    def __init__(
        self, training: Training, tape: SyntheticTape, layout: Layout, models: Mapping[str, TrainedModel], batch: int, tokens: int
    ) -> None:
        """`models`: one for each unit of the tape, all with the same parameters. `batch`, `tokens`: samples and tokens of a local step.

        Raises LayoutError for a model that cannot be cut as the job says.
        """
        self.core = Core(layout, training)
        first = models[min(models)]
        norms = self.core.seed([first.read(fragment.index) for fragment in self.core.fragments])
        assert not isinstance(norms, Refusal), "parameters of a model that was just made are finite"
        self.core.take(Seeded(0.0, norms))
        super().__init__(training, (), default_rng(tape.seed), driver=self.core, tokens=tokens)
        self._models = models
        self._batch = batch
        self._steps = training.steps
        self._next_sample = 0
        self._local_steps = dict.fromkeys(models, 0)
        """By unit, those that its model has taken."""
        self._began: set[str] = set()
        """Units that have had a process."""
        self._here: set[str] = set()
        """Units with a process that trains."""
        self._held: dict[str, dict[int, Float32Array]] = {name: {} for name in models}
        """By unit and fragment, what was adopted."""
        self._remainders = {name: Remainders() for name in models}
        self._pushed: dict[str, dict[int, int]] = {name: {} for name in models}
        """By unit and fragment, the outer step of the last merge that holds a push of its present process."""
        self._payloads: dict[tuple[str, int], memoryview] = {}
        """By unit and outer step, answers that are under way."""
        self.slices = slices = _TapeSlices(self, tape)
        for name in tape.units:
            self.add_unit(name, slices.hardware(name))
        slices.begin()

    # --- what units say -----------------------------------------------------------------------------------------------

    def joined(self, unit: SimulatedUnit) -> None:
        self._here.add(unit.name)
        super().joined(unit)

    def left(self, unit: SimulatedUnit) -> None:
        self._here.discard(unit.name)
        super().left(unit)

    def adopted(self, unit: SimulatedUnit, fragment: int, version: int) -> None:
        assert version == self.core.version(fragment), "nothing is under way: what is adopted is the newest"
        if unit.name not in self._here and fragment == 0:
            self._restart(unit.name)
        held = self.core.value(fragment)
        self._models[unit.name].adopt(fragment, held)
        self._held[unit.name][fragment] = held
        self._remainders[unit.name].received(fragment, version, self._pushed[unit.name].get(fragment, 0))

    def stepped(self, unit: SimulatedUnit, metadata: Metadata) -> None:
        name = unit.name
        if metadata.local_step > self._local_steps[name]:  # a unit that rests repeats its last report
            self._local_steps[name] = metadata.local_step
            numbers = np.arange(self._next_sample, self._next_sample + self._batch, dtype=np.int64)
            self._next_sample += self._batch
            self._models[name].step(numbers, min(1.0, self.core.t / self._steps))
        super().stepped(unit, metadata)

    def answered(self, unit: SimulatedUnit, pull: Pull, base: int, steps: int, tokens: int) -> None:
        name, coding = unit.name, self.core.coding
        values = self._models[name].read(pull.fragment)
        if coding.delta:
            np.subtract(values, self._held[name][pull.fragment], out=values)
        if coding is Coding.INT4_DELTA:
            self._remainders[name].add_to(pull.fragment, values)
        payload = encode(coding, values)
        if coding is Coding.INT4_DELTA:
            leave_rounding_error(coding, payload, values)
            self._remainders[name].coded(pull.fragment, pull.t, values)
        self._payloads[name, pull.t] = memoryview(payload)
        super().answered(unit, pull, base, steps, tokens)

    def _restart(self, name: str) -> None:
        """Let a unit begin as a new process, with the state of the first peer that trains."""
        first = name not in self._began
        self._began.add(name)
        self._remainders[name], self._pushed[name] = Remainders(), {}
        if not first:
            self._models[name].restart(self._models[min(self._here)] if self._here else None)

    # --- what the driver wants ----------------------------------------------------------------------------------------

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Merged):
            for name in effect.units:
                self._pushed[name][effect.fragment] = effect.t
        elif isinstance(effect, Broadcast):
            self._payloads = {key: payload for key, payload in self._payloads.items() if key[1] > effect.t}
        super()._carry_out(effect)

    def _decode(self, effect: Decode) -> Sequence[Effect]:
        unit, offer, now = effect.unit, effect.offer, self.timeline.now
        decoded = self.core.decode(unit, offer, self._payloads.pop((unit, offer.t)))
        if isinstance(decoded, Refusal):
            self.core.take(Unusable(now, unit, offer))
            return [Refused(unit, offer, decoded)]
        return self.core.use(unit, offer, decoded, now)

    def _close(self, effect: Close) -> Sequence[Effect]:
        return self.core.computed(effect, self.core.compute(effect), self.timeline.now)


class _TapeSlices:
    """Implements `unit.Slices`: units are slow and fail as a tape says."""

    def __init__(self, job: SimulatedJob, tape: SyntheticTape) -> None:
        self._job = job
        self._tape = tape
        self._slow: dict[str, list[Slow]] = {name: [] for name in tape.units}
        for one in tape.happenings:
            if isinstance(one, Slow):
                self._slow[one.unit].append(one)
        self._away: set[str] = set()

    def hardware(self, unit: str) -> Hardware:
        """Return what a unit runs on: its failures are those of the tape."""
        return Hardware(step_seconds=self._tape.units[unit], elastic=False)

    def begin(self) -> None:
        """Plan the failures."""
        for one in self._tape.happenings:
            if isinstance(one, Fail):
                self._job.timeline.at(one.at, partial(self._fail, one))

    def failed(self, unit: SimulatedUnit) -> None:
        raise AssertionError("an accelerator of a synthetic tape never fails by itself")

    def trains(self, unit: SimulatedUnit) -> None:
        pass

    def slowdown(self, unit: SimulatedUnit) -> float:
        now = self._job.timeline.now
        return math.prod(one.factor for one in self._slow[unit.name] if one.at <= now < one.at + one.seconds)

    def _fail(self, one: Fail) -> None:
        if one.unit in self._away:
            return
        self._away.add(one.unit)
        self._job.units[one.unit].lost()
        self._job.timeline.at(self._job.timeline.now + one.seconds, partial(self._back, one.unit))

    def _back(self, unit: str) -> None:
        self._away.discard(unit)
        self._job.units[unit].place(self.hardware(unit))
