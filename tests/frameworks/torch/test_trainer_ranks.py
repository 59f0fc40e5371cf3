"""Units of several ranks whose program is the Trainer of transformers or of Lightning, started as a person starts them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from builders.exchange import PROGRAMS, LocalSyncer, Place, Program, job_file, training
from builders.ports import held_port
from diloco.data.ledger import Ledger
from diloco.snapshots.store import SnapshotStore

pytestmark = pytest.mark.slow

RANKS = 2
SAMPLES_OF_A_STEP = RANKS * 2 * 2
"""Samples of a step of trainer_ranks.py: a batch of 2, accumulated twice, in each rank."""
LENGTH = 6
BIN = Path(sys.executable).parent
"""Also the parent of what pods run: the scripts of this environment."""


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "start"),
    [
        ("hf", [str(BIN / "torchrun"), "--nproc-per-node", str(RANKS)]),
        ("lightning", [str(BIN / "diloco-launch"), "--nproc-per-node", str(RANKS)]),
    ],
)
def test_the_ranks_end_with_one_model_and_every_sample_is_counted_once(tmp_path: Path, kind: str, start: list[str]) -> None:
    place = Place(tmp_path, job_file(training(40)))
    with LocalSyncer(place) as syncer:
        environment = place.of_learner(syncer.address, "a", PET_MASTER_PORT=str(held_port()))
        program = Program([*start, str(PROGRAMS / "trainer_ranks.py"), kind, str(tmp_path)], os.environ | environment, tmp_path / "log")
        try:
            status = program.wait(600)
        finally:
            program.end()
        assert status == 0, program.text
        syncer.wait()
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS))
    assert first == second, "both hold the job's final parameters after as many steps"
    assert first["done"]
    last = SnapshotStore(place.state / "snapshots", keep=1).load_newest()
    assert last is not None
    unit = Ledger.from_json(last.meta["ledger"]).summary().units["a"]
    assert 0 < unit.steps <= first["steps"]
    assert unit.samples == unit.steps * SAMPLES_OF_A_STEP
    assert unit.tokens == unit.samples * LENGTH
