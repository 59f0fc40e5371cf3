"""When a unit stores its state, boundary by boundary, and what it says of it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from builders.exchange import Place, job_file, training, until, weights
from builders.momentum_learner import Copied, MomentumState
from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import wholes
from diloco.contract import Checkpoint, LearnerStates
from diloco.learner.arrays import ArrayStore
from diloco.learner.config import read_learner_config
from diloco.learner.stored_parts import PartsOfProcess, StoredParts
from diloco.protocol.diloco_pb2 import Marker
from diloco.protocol.state_parts import StateError, cut
from diloco.protocol.state_values import decode
from diloco.recovery.storing import MOST_SECONDS, Storer
from diloco.snapshots.remote_folders import RemoteFolders
from diloco.snapshots.stored_state import Block, UnitFolder, folder_of, writer_of

LAYOUT = Layout(ArrayStore(weights()).specs())
PARTS = cut(wholes(LAYOUT.tensors), 50)


class Never:
    """A `StoredParts` of a process whose store hangs."""

    def at_boundary(self, step_seconds: float) -> None: ...

    def done(self) -> bool:
        return False

    def blocks(self) -> Sequence[Block]:
        raise AssertionError("nothing is written")

    def end(self) -> None: ...


class Scene:
    """A unit whose steps count its state's, and which was told to store it."""

    def __init__(self, folder: Path, parts: Callable[[Scene, str], StoredParts]) -> None:
        checkpoint = Checkpoint(learners=LearnerStates.ALWAYS, uri=f"file://{folder}/remote")
        place = Place(folder, job_file(training(100, checkpoint=checkpoint)))
        self.config = read_learner_config(place.of_learner("127.0.0.1:1", "a"))
        self.state = MomentumState(weights())
        self.now = 0.0
        self.kind, self.stage_rest = self.state.kind, self.state.stage_rest
        self.store = functools.partial(parts, self)
        self.begin_process("5d0e11fa")

    def begin_process(self, name: str) -> None:
        """A process without steps behind it, and told to store its state."""
        self.state.steps = 0
        self.storer = Storer(self.config, LAYOUT, self, name, lambda: self.now)  # type: ignore[arg-type]
        self.storer.marker(Marker(t=8))

    def writes(self, name: str) -> PartsOfProcess:
        # Time stands still but for the first look at the clock, so a part is staged at each boundary.
        clock = iter(range(1_000_000))
        return PartsOfProcess(self.state, PARTS, lambda: writer_of(self.config.job, "a", name, 0), now=lambda: float(next(clock)))

    @property
    def folder(self) -> UnitFolder:
        return folder_of(self.config.job, "a")

    def step(self) -> None:
        self.state.steps += 1
        self.storer.at_boundary(self.state.steps, 0.001)

    def stores(self) -> None:
        """Go on until a state is stored."""
        before = self.folder.newest()

        def stored() -> bool:
            self.step()
            return self.folder.newest() != before

        until(stored, "the state is stored")


def test_the_small_rest_is_of_the_boundary_after_the_last_block(tmp_path: Path) -> None:
    written = []

    class Noting(PartsOfProcess):
        def done(self) -> bool:
            if found := super().done():
                written.append(scene.state.steps)
            return found

    def parts(scene: Scene, name: str) -> StoredParts:
        clock = iter(range(1_000_000))
        return Noting(scene.state, PARTS, lambda: writer_of(scene.config.job, "a", name, 0), now=lambda: float(next(clock)))

    scene = Scene(tmp_path, parts)
    scene.stores()
    found = scene.folder.newest()
    assert found is not None
    assert found.local_step == 1
    (steps,) = written
    assert decode(scene.folder.read_rest(found))["steps"] == steps
    # A part at each boundary from the second on, and one to say that there is no more.
    assert steps >= 1 + len(PARTS) + 1


def test_a_store_that_hangs_is_told_and_what_is_stored_after_all_takes_it_back(tmp_path: Path) -> None:
    scene = Scene(tmp_path, lambda scene, name: Never())
    for scene.now in (0.0, MOST_SECONDS):
        scene.step()
        assert scene.storer.error == ""
    scene.now += 1
    scene.step()
    assert scene.storer.error == "it has been under way for 2400 s; the one before it is intact"

    late = Scene(tmp_path, Scene.writes)
    late.step()
    late.now = MOST_SECONDS + 1
    late.step()
    assert late.storer.error
    late.stores()
    until(lambda: not late.storer.error, "nothing is wrong any more")


def test_a_process_does_not_write_over_what_one_before_it_has_stored_at_the_same_step(tmp_path: Path) -> None:
    """The processes of a learner outside the cluster have one attempt, and each counts its steps from 0."""

    def dies() -> Copied:
        raise StateError("the process dies once its blocks are written")

    scene = Scene(tmp_path, Scene.writes)
    scene.stores()
    scene.begin_process("0b5c0a1d")
    scene.state.momentum["w0"][:] = 7.0
    scene.stage_rest = dies

    def died() -> bool:
        scene.step()
        return bool(scene.storer.error)

    until(died, "its blocks are written")
    stored = scene.folder.newest()
    assert stored is not None
    for block in stored.blocks:
        assert not any(scene.folder.read(stored, block.file, block.bytes, block.sha256))


def test_a_state_is_stored_although_the_one_before_it_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(tmp_path, Scene.writes)
    scene.stores()

    def refuse(folders: RemoteFolders, name: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(RemoteFolders, "remove", refuse)
    with caplog.at_level(logging.WARNING):
        scene.storer.marker(Marker(t=16))
        scene.stores()
    newest = scene.folder.newest()
    assert newest is not None
    assert newest.t == 16
    until(lambda: "could not be removed, the next one tries again: [Errno 13] Permission denied" in caplog.text, "it is logged")
    assert scene.storer.error == ""
    monkeypatch.undo()
    scene.storer.marker(Marker(t=24))
    scene.stores()
    until(lambda: len(list(tmp_path.glob("remote/*/learners/a/*"))) == 1, "those before are gone")
