"""At every snapshot, ledger and parameters agree on what is trained, whatever dies when. The parameters are the learners' own account."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from builders.engine_simulation import Account, World, a_training, simulate
from builders.exploration import ALL
from builders.simulated_unit import UnitSpeed
from builders.virtual_time import run_virtual

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("slow", [False, True], ids=["of like speed", "staging ahead"])
def test_every_snapshot_holds_exactly_what_its_ledger_says_whatever_dies_when(tmp_path: Path, *, slow: bool) -> None:
    told: Counter[str] = Counter()
    ahead = 0
    seeds = 4 if ALL else 2
    for seed in range(seeds):
        world = simulate(tmp_path / str(seed), seed, slow=slow)
        account = world.account
        # 120 outer steps with a snapshot every 3, and one more at each stop of the syncer
        assert account.moments >= 40
        assert account.compared > (100 if slow else 1000)
        assert account == Account(account.moments, account.compared, longest_open=account.longest_open), (
            f"seed {seed}: a part that must be 0 is not"
        )
        told += world.told
        ahead += world.answered_ahead
    assert not slow or ahead > 12 * seeds, "pulls were answered with what was staged before they came"
    assert set(told) == {"syncer killed", "syncer stopped", "learner killed", "learner drained", "link cut"}


def test_without_trouble_all_but_the_last_interval_is_committed(tmp_path: Path) -> None:
    world = simulate(tmp_path, 3, units=2, trouble=0)
    assert world.engine is not None
    committed = world.engine.work.ledger.summary()
    trained = sum(len(numbers) for numbers in world.steps.numbers)
    # The clock takes an outer step for each mean local step, so a unit takes some 120 steps. Of these, the last H and those that
    # were under way to a merge are not committed.
    interval, overlap = world.training.sync_interval, world.training.overlap_steps
    most = 2 * 4 * 1.5 * (interval + overlap + 4)  # units x largest batch x the faster unit's share x outer steps
    assert trained - most < committed.committed < trained


def one_fast(directory: Path, *slow: UnitSpeed, overlap: int = 2, steps: int = 200) -> World:
    """A job with the paper's P = H = 24 and a fast unit beside slow ones, without trouble; counted once all know their pace."""
    fast = UnitSpeed(1.0, jitter=0.05, wire_seconds=0.2)
    world = World(directory, 1, a_training(steps, interval=24, fragments=24, overlap=overlap), [fast, *slow])
    world.settled = 60
    run_virtual(world.run(0))
    assert world.account.wrong == 0
    return world


def test_units_ten_times_slower_are_in_every_merge_and_their_work_is_committed_within_the_interval(tmp_path: Path) -> None:
    """With answers at step boundaries only it was 43 % of the merges, and 115 outer steps until a step was committed."""
    world = one_fast(tmp_path, *[UnitSpeed(10.0, jitter=0.05, wire_seconds=0.2)] * 7)
    assert [world.share_of_merges(unit) for unit in world.units[1:]] == [pytest.approx(1.0, abs=0.02)] * 7
    # All fragments are pulled within H outer steps of the end of a step, and merged at most tau + 1 steps later.
    assert world.account.longest_open <= 24 + 2 + 1
    for unit in world.units[1:]:
        # An outer step takes 1.5 s, so 6.7 pulls come during a step. Those of the last outer step wait for its end.
        assert 4 <= world.learner(unit).most_ahead <= 7
    assert world.learner("u-0").most_ahead == 0


def test_units_of_like_speed_stage_nothing_ahead(tmp_path: Path) -> None:
    """The speeds of the paper's learners differ by 18 %."""
    world = one_fast(tmp_path, UnitSpeed(1.09, jitter=0.05), UnitSpeed(1.18, jitter=0.05))
    assert [world.learner(unit).most_ahead for unit in world.units] == [0, 0, 0]
    assert world.answered_ahead == 0


@pytest.mark.parametrize(("overlap", "share"), [(0, 0.8), (1, 0.95), (4, 0.98)])
def test_slow_units_take_part_whatever_the_overlap(tmp_path: Path, overlap: int, share: float) -> None:
    slow = [UnitSpeed(10.0, jitter=0.2, wire_seconds=0.2)] * 2
    world = one_fast(tmp_path, *slow, overlap=overlap, steps=160)
    assert min(world.share_of_merges(unit) for unit in world.units) >= share


def test_nothing_that_was_staged_is_left_behind(tmp_path: Path) -> None:
    world = one_fast(tmp_path, UnitSpeed(8.0), steps=60)
    assert world.answered_ahead > 0
    assert [world.learner(unit).record.staged for unit in world.units] == [0, 0]
