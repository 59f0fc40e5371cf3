"""Jobs on virtual time whose units train a model of numbers: each step adds the unit's own rate to all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from builders.core import a_job, a_layout
from diloco.algorithm.fragments import make_fragments
from diloco.contract import Training
from diloco.learner.store import Float32Array
from numpy.typing import NDArray

from benchmarks.law.synthetic_tape import Fail, Happening, Slow, SyntheticTape
from benchmarks.law.tape_training import TrainedJob, TrainedModel

LAYOUT = a_layout(tensors=4, size=5)
BATCH = 2


class Numbers:
    """Implements `TrainedModel`."""

    def __init__(self, training: Training, rate: float) -> None:
        self.values = [np.zeros(fragment.size, np.float32) for fragment in make_fragments(LAYOUT, training.fragments)]
        self.rate = rate
        self.momentum = 0
        """Steps that the optimizer remembers."""
        self.samples: list[int] = []
        self.donors: list[TrainedModel | None] = []

    def step(self, numbers: NDArray[np.int64], progress: float) -> None:
        self.values = [values + np.float32(self.rate) for values in self.values]
        self.momentum += 1
        self.samples += numbers.tolist()

    def read(self, fragment: int) -> Float32Array:
        return self.values[fragment].copy()

    def adopt(self, fragment: int, values: Float32Array) -> None:
        self.values[fragment] = values.copy()

    def restart(self, donor: TrainedModel | None) -> None:
        self.donors.append(donor)
        self.momentum = donor.momentum if isinstance(donor, Numbers) else 0


def a_tape(*happenings: Happening, **units: float) -> SyntheticTape:
    return SyntheticTape(7, units, happenings)


def a_training(**changes: Any) -> Training:
    return a_job(**({"steps": 24} | changes))


def trained(tape: SyntheticTape, training: Training, rates: Mapping[str, float] | None = None) -> tuple[TrainedJob, dict[str, Numbers]]:
    models = {name: Numbers(training, (rates or {}).get(name, 1.0)) for name in tape.units}
    job = TrainedJob(training, tape, LAYOUT, models, batch=BATCH, tokens=100)
    job.run()
    return job, models


def parameters(job: TrainedJob) -> bytes:
    return b"".join(job.core.value(fragment.index).tobytes() for fragment in job.core.fragments)


def steps_of(models: Mapping[str, Numbers], unit: str) -> int:
    return len(models[unit].samples) // BATCH


@pytest.mark.parametrize("compression", ["None", "BFloat16", "Int4"])
def test_same_tape_gives_the_same_bytes(compression: str) -> None:
    training = a_training(compression=compression, outer_optimizer={"learning_rate": 0.7, "momentum": 0.9}, merge={"method": "RDA"})
    tape = a_tape(Slow(3.0, "a", 3.0, 5.0), Fail(6.5, "b", 4.0), a=1.0, b=0.7, c=1.3)
    rates = {"a": 0.1, "b": 0.2, "c": -0.3}
    first, _ = trained(tape, training, rates)
    again, _ = trained(tape, training, rates)
    other, _ = trained(a_tape(Fail(6.5, "b", 4.0), a=1.0, b=0.7, c=1.3), training, rates)
    assert parameters(first) == parameters(again)
    assert parameters(first) != parameters(other)


def test_one_unit_at_outer_rate_1_gives_what_it_trained() -> None:
    """The whole model is one fragment, exchanged after each step without overlap: each merge takes the unit's parameters."""
    job, _ = trained(a_tape(a=1.0), a_training(fragments=1, sync_interval=1, overlap_steps=0, steps=10))
    [held] = [job.core.value(0)]
    assert set(held.tolist()) <= set(range(1, 12))
    assert len(set(held.tolist())) == 1


def test_faster_units_take_more_steps_and_slow_ones_fewer() -> None:
    _, models = trained(a_tape(Slow(0.0, "c", 4.0, 1e6), a=1.0, b=0.5, c=1.0), a_training(steps=40))
    assert steps_of(models, "b") == pytest.approx(2 * steps_of(models, "a"), abs=2)
    assert steps_of(models, "c") == pytest.approx(steps_of(models, "a") / 4, abs=2)


def test_unit_that_failed_begins_again_with_the_state_of_a_peer() -> None:
    tape = a_tape(Fail(10.0, "b", 6.0), a=1.0, b=1.0, c=1.0)
    _, models = trained(tape, a_training(steps=60))
    assert models["b"].donors == [models["a"]]
    assert models["a"].donors == []
    # It trained for 10 s and was away for 6: what its peer remembered by then is 6 steps more than its own.
    assert models["b"].momentum == pytest.approx(steps_of(models, "b") + 6, abs=2)
    assert steps_of(models, "b") == pytest.approx(steps_of(models, "a") - 6, abs=2)


def test_units_that_all_failed_begin_again_with_nothing() -> None:
    tape = a_tape(Fail(10.0, "a", 6.0), Fail(10.0, "b", 6.0), a=1.0, b=1.0)
    job, models = trained(tape, a_training(steps=40))
    assert None in models["a"].donors + models["b"].donors
    assert job.core.t == 40


def test_failure_of_a_unit_that_is_away_is_passed_over() -> None:
    tape = a_tape(Fail(5.0, "b", 10.0), Fail(8.0, "b", 1.0), a=1.0, b=1.0)
    _, models = trained(tape, a_training(steps=40))
    assert len(models["b"].donors) == 1


def test_no_sample_is_trained_twice() -> None:
    _, models = trained(a_tape(Fail(9.0, "b", 3.0), a=1.0, b=0.8, c=1.1), a_training())
    samples = [number for model in models.values() for number in model.samples]
    assert sorted(samples) == list(range(len(samples)))
