"""At every snapshot, ledger and parameters agree on what is trained, whatever dies when. The parameters are the learners' own account."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from builders.engine_simulation import Account, simulate


def test_every_snapshot_holds_exactly_what_its_ledger_says_whatever_dies_when(tmp_path: Path) -> None:
    told: Counter[str] = Counter()
    for seed in range(4):
        world = simulate(tmp_path / str(seed), seed)
        account = world.account
        # 120 outer steps with a snapshot every 3, and one more at each stop of the syncer
        assert account.moments >= 40
        assert account.compared > 1000
        assert account == Account(account.moments, account.compared), f"seed {seed}: a part that must be 0 is not"
        told += world.told
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
