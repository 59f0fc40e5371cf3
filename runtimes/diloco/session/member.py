"""What a session asks of the part that takes part in the job: in a unit of one process, or as one rank of many.

See docs/decisions/0151-step-boundary.md. See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from diloco.learner.syncer_link import SyncerLink


class Member(Protocol):
    """Called on the training thread, but for `drain`. Nothing waits except `wait` and `close`."""

    @property
    def link(self) -> SyncerLink:
        """Where the program's own words for the syncer go."""
        ...

    @property
    def t(self) -> int:
        """Last known outer step."""
        ...

    @property
    def steps(self) -> int:
        """Outer steps of the job."""
        ...

    @property
    def progress(self) -> float:
        """The share of the job that is done, 0..1: the same on all ranks of a unit at the same local step, and never less than before."""
        ...

    @property
    def step_count(self) -> int:
        """Local steps of this process."""
        ...

    @property
    def may_step(self) -> bool:
        """The model holds the job's parameters, and the next local step may be done now."""
        ...

    @property
    def done(self) -> bool:
        """The job is over, and the final parameters are in the model."""
        ...

    @property
    def draining(self) -> bool:
        """The unit drains: there is no next step."""
        ...

    def start(self) -> None:
        """Begin to connect."""
        ...

    def begin(self) -> None:
        """Note that the model holds the job's parameters: the first step comes next. Do now what would make the first boundaries slow."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait until there may be something to do at the boundary, at most `seconds`."""
        ...

    def boundary(self, *, in_step: bool = False) -> None:
        """Do what is due between two steps. `in_step`: the program has updated its parameters, and `stepped` has not counted it yet. Raises
        `Leave` when the syncer refuses this unit for good."""
        ...

    def take(self, count: int) -> NDArray[np.int64] | None:
        """Return the sequence numbers of this process's next batch, int64 [count]; None: there are none now."""
        ...

    @property
    def who(self) -> str:
        """Who takes the batches, for an error about them."""
        ...

    @property
    def why_none(self) -> str:
        """Why `take` gives none, human-readable: what follows the name of the unit."""
        ...

    def stepped(self, tokens: int, loss: float | None, step_seconds: float, batches: int | None) -> None:
        """Note that a local step is done, which settles the oldest `batches` batches of those taken; None: the program feeds itself.
        `loss`: NaN or None if it is not known."""
        ...

    @property
    def ends_between_steps(self) -> bool:
        """The end of the job comes at a boundary, also if the program takes no further step."""
        ...

    def ask_for_work(self, batch_size: int, batches: int | None, ahead: int) -> None:
        """Ask for samples where there are too few for the next steps. `batch_size`: samples of this process's batch. `batches`: how many of
        them to hold; None: enough for some time of training. `ahead`: how many the program may hold unsettled."""
        ...

    def restore(self) -> None:
        """Put the final parameters back: the program trained on once the job was done."""
        ...

    def changed(self) -> list[str]:
        """Return the tensors of a job that is done of which the program holds other values than the final ones. Waits for the device."""
        ...

    def drain(self) -> None:
        """Note that the process was told to end. Called by a handler of a signal: it only takes note."""
        ...

    def close(self) -> None:
        """Leave orderly."""
        ...

    def abandon(self, error: BaseException | None) -> None:
        """Leave at once: the program raised."""
        ...
