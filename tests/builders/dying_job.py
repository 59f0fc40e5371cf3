"""A job of a real syncer and learners that store their states, of which every process dies and begins again."""

from __future__ import annotations

from pathlib import Path

from builders.exchange import JOB_UID, Place, job_file, training, until
from builders.momentum_job import MomentumJob
from builders.momentum_learner import MomentumLearner, MomentumState
from diloco.contract import Checkpoint, LearnerStates
from diloco.protocol.diloco_pb2 import Report
from diloco.snapshots.store import Unusable
from diloco.snapshots.stored_state import StoredState, folder_of

H = 2


class DyingJob(MomentumJob):
    """All die and begin again."""

    def __init__(
        self, folder: Path, learners: LearnerStates = LearnerStates.ALWAYS, every_steps: int = 8, uri: str = "", job_uid: str = JOB_UID
    ) -> None:
        """`every_steps`: outer steps between snapshots. `uri`: where states and copies go; "": below `folder`."""
        checkpoint = Checkpoint(every_steps=every_steps, keep=2, learners=learners, uri=uri or f"file://{folder}/remote")
        super().__init__(Place(folder, job_file(training(1_000_000, sync_interval=H, checkpoint=checkpoint), job_uid)))
        self.remote = folder / "remote"
        self.attempts = 0

    @property
    def copies(self) -> Path:
        """The folder of this job at a URI below its own."""
        job = self.place.job
        return self.remote / f"{job.namespace}-{job.name}-{job.uid}"

    @property
    def states(self) -> Path:
        return self.copies / "learners"

    def unit(self, name: str, state: MomentumState | None = None, step_seconds: float = 0.002) -> MomentumLearner:
        address, attempt = self.syncer.address, 1 + self.attempts
        learner = MomentumLearner(self.place, address, name, attempt, state=state, step_seconds=step_seconds).start()
        self.learners.append(learner)
        return learner

    def stored(self, unit: str, after: int = 0) -> StoredState:
        """The newest state of a unit, once it is of a marker after this outer step."""
        folder = folder_of(self.place.job, unit)

        def found() -> StoredState | None:
            try:
                state = folder.newest()
            except Unusable:
                return None  # the next one is being written, or has taken its place meanwhile
            return state if state is not None and state.t > after else None

        state: StoredState = until(found, f"unit {unit} stores its state after outer step {after}")
        return state

    def newest(self, unit: str) -> Path:
        """The folder of the newest whole state of a unit, below this job's."""
        return max(path.parent for path in self.states.glob(f"{unit}/*/manifest.json"))

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
