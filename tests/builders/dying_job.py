"""A job of a real syncer and learners that store their states, of which every process dies and begins again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from builders.exchange import Place, job_file, training, until
from builders.momentum_job import MomentumJob
from builders.momentum_learner import MomentumLearner, MomentumState
from diloco.contract import Checkpoint, LearnerStates
from diloco.protocol.diloco_pb2 import Report

H = 2


class DyingJob(MomentumJob):
    """All die and begin again."""

    def __init__(self, folder: Path, learners: LearnerStates = LearnerStates.ALWAYS, every_steps: int = 8, uri: str = "") -> None:
        """`every_steps`: outer steps between snapshots. `uri`: where copies go; "": nowhere."""
        checkpoint = Checkpoint(every_steps=every_steps, keep=2, learners=learners, uri=uri)
        super().__init__(Place(folder, job_file(training(1_000_000, sync_interval=H, checkpoint=checkpoint))))
        self.attempts = 0

    @property
    def states(self) -> Path:
        return self.place.state / "learners"

    def unit(self, name: str, state: MomentumState | None = None) -> MomentumLearner:
        learner = MomentumLearner(self.place, self.syncer.address, name, 1 + self.attempts, state=state).start()
        self.learners.append(learner)
        return learner

    def stored(self, unit: str, after: int = 0) -> dict[str, Any]:
        """The manifest of the newest state of a unit, once it is of a marker after this outer step."""

        def found() -> dict[str, Any] | None:
            whole = sorted(self.states.glob(f"{unit}.*/manifest.json"))
            try:
                manifest: dict[str, Any] = json.loads(whole[-1].read_text()) if whole else {"t": 0}
            except FileNotFoundError:
                return None  # the next one has taken its place meanwhile
            return manifest if manifest["t"] > after else None

        manifest: dict[str, Any] = until(found, f"unit {unit} stores its state after outer step {after}")
        return manifest

    def die(self) -> Report:
        """Let everything die, learners without a word. The syncer's last report."""
        for learner in self.learners:
            learner.kill()
        for learner in self.learners:
            learner.wait()
        self.learners.clear()
        report = self.syncer.report()
        self.syncer.stop()
        self.attempts += 1
        return report
