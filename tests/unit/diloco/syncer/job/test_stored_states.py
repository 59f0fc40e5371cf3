"""How long the syncer keeps the states of units, on virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.engine_simulation import World, a_training
from builders.snapshots import a_stored_state
from builders.virtual_time import run_virtual
from diloco.snapshots.store import SnapshotStore, step_of
from diloco.snapshots.unit_states import UnitStates

pytestmark = pytest.mark.slow


def test_a_state_stays_until_all_snapshots_are_of_training_without_its_unit(tmp_path: Path) -> None:
    """Snapshots every third outer step, two are kept. The states are of outer step 3, and all dies after step 13: the snapshots of the
    process before are of steps 9 and 12, so both states are older than any of them from its first snapshot on."""
    world = World(tmp_path, 1, a_training(1000, interval=4, fragments=2, overlap=1), [None, None])
    root = tmp_path / "learners"
    seen: list[tuple[int, set[str]]] = []

    def look() -> None:
        oldest = min(step_of(path.name) or 0 for path in SnapshotStore(tmp_path / "snapshots", 2).paths())
        seen.append((oldest, {path.name.rpartition(".")[0] for path in root.iterdir()}))

    async def run() -> None:
        await world.run_until(13, world.units)
        states = UnitStates(root, "uid")
        for unit in world.units:
            a_stored_state(states, unit, t=3, layout=world.layout)
        await world.run_until(40, ["u-0"], look)

    run_virtual(run())
    began_at = world.restored_t
    assert began_at >= 12, "the syncer loses no merge that was sent"
    before = [units for oldest, units in seen if oldest <= began_at]
    assert any(3 < oldest <= began_at for oldest, _ in seen), "the states are older than every snapshot"
    assert all(units == {"u-0", "u-1"} for units in before)
    assert seen[-1][0] > began_at
    assert seen[-1][1] == {"u-0"}, "the state of the unit with a session stays: its next one is on its way"
