"""The driver: one input, one output, and the same output for the same input."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import pytest
from builders.core import InlineCore, a_job, a_layout
from builders.sequences import Sequence, replayed
from diloco.algorithm.codec import Coding
from diloco.algorithm.coordinator import Coordinator
from diloco.algorithm.core import Core
from diloco.algorithm.driver import Driver, NoArrays
from diloco.algorithm.events import Computed, Seeded
from diloco.algorithm.guards import Guard

SEEDS = range(12)
HAPPENINGS = 1500


@pytest.mark.slow
def test_tapes_of_random_jobs_replay_to_equal_effects_and_equal_bytes() -> None:
    events, effects = set[str](), set[str]()
    for seed in SEEDS:
        job = Sequence(seed).run(HAPPENINGS)
        for number, tape in enumerate(job.tapes):
            core = Core(job.layout, job.training, tape.state)
            for index, again in enumerate(replayed(core, tape)):
                assert repr(again) == repr(tape.effects[index]), f"seed {seed}, event {index}: {tape.events[index]}"
            if number + 1 < len(job.tapes):
                after = job.tapes[number + 1].state
                assert after is not None
                values, momentum = after.values, after.momentum
            else:
                values, momentum = job.core.shard.values, job.core.shard.momentum
            assert [x.tobytes() for x in core.shard.values] == [x.tobytes() for x in values]
            assert [x.tobytes() for x in core.shard.momentum] == [x.tobytes() for x in momentum]
            events |= {type(event).__name__ for event in tape.events}
            effects |= {type(effect).__name__ for each in tape.effects for effect in each}
    assert events == {
        "Computed", "EndsAt", "Joined", "Left", "Lives", "Offered", "Paused", "Reported", "Seeded", "Tick", "Unusable", "Usable"
    }  # fmt: skip
    assert effects == {
        "Broadcast", "Close", "Decode", "ContributionRejected", "Finish", "Merged", "Pull", "Refused", "Rest", "Skipped", "Snapshot"
    }  # fmt: skip


@pytest.mark.slow
def test_driver_without_arrays_decides_the_same() -> None:
    for seed in SEEDS:
        job = Sequence(seed).run(HAPPENINGS)
        tape = job.tapes[0]
        guard = Guard([fragment.size for fragment in job.core.fragments])
        driver = Driver(Coordinator(job.training, guard), NoArrays())
        for event, effects in zip(tape.events, tape.effects, strict=True):
            assert repr(driver.take(event)) == repr(effects)


def plain(value: object) -> bool:
    """Whether it could be written down as it is."""
    if isinstance(value, tuple):
        return all(plain(one) for one in value)
    if is_dataclass(value):
        return all(plain(getattr(value, field.name)) for field in fields(value))
    return isinstance(value, str | int | float | Coding)


@pytest.mark.slow
def test_events_are_plain_values() -> None:
    job = Sequence(3).run(HAPPENINGS)
    for tape in job.tapes:
        for event in tape.events:
            assert plain(event), event
            assert hash(event) == hash(event)


def test_merge_that_was_not_ordered_is_an_error() -> None:
    core = InlineCore(a_layout(), a_job())
    core.take(Seeded(0.0, (0.0,) * 4))
    with pytest.raises(KeyError):
        core.take(Computed(1.0, 7, finite=True))
