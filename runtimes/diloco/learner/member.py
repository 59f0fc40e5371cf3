"""A process's part in its job: what a unit of one process and a rank of several have in common, and what a session asks of both.

See docs/decisions/0151-step-boundary.md. See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.codec import coding_for
from diloco.algorithm.pieces import portion
from diloco.contract import Training
from diloco.learner.config import LearnerConfig
from diloco.learner.connection import Connection
from diloco.learner.exchanged_model import ExchangedModel
from diloco.learner.inbox import Inbox
from diloco.learner.incarnations import Incarnations
from diloco.learner.peers import Model, Peers
from diloco.learner.program import Program
from diloco.learner.progress import JobProgress
from diloco.learner.store import Float32Array, Ready
from diloco.learner.timetable import timetable
from diloco.learner.unit_plan import UnitState
from diloco.protocol.diloco_pb2 import Hello, Progress

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemberParts:
    unit: str
    training: Training
    model: ExchangedModel
    """What this process owns of each fragment."""
    inbox: Inbox
    link: Connection
    peers: Peers
    """Gives, stores and takes the unit's state. In a rank that is not the leader it does nothing."""


def make_parts(
    config: LearnerConfig,
    hello: Hello,
    program: Program,
    inbox: Inbox,
    incarnations: Incarnations,
    peers: Peers,
) -> MemberParts:
    """Return the parts of the process that says `hello`."""
    store = program.store
    owned = store.owned()
    portions = [portion(fragment, owned) for fragment in program.fragments]
    link = Connection(config, hello, portions, store, inbox, incarnations, peers)
    model = ExchangedModel(store, portions, link.received, program.on_adopt)
    return MemberParts(config.unit, config.job.training, model, inbox, link, peers)


class Member(ABC):
    """Called on the training thread, except `drain`. Only `wait` and `close` wait."""

    ends_between_steps = True
    """The end of the job comes at a boundary, also if the program takes no further step."""

    def __init__(self, parts: MemberParts) -> None:
        training = parts.training
        self._unit = parts.unit
        self._model = parts.model
        self._inbox = parts.inbox
        self.link = parts.link
        """The session uses it for the program's own messages to the syncer."""
        self._peers = parts.peers
        self._coding = coding_for(training.compression)
        """The coding of pushes."""
        self._table = timetable([owned.fragment.size for owned in self._model.portions], training.sync_interval, training.overlap_steps)
        self._progress = JobProgress(self._table, training.tokens)
        self._step_seconds = 0.0

    # --- what it knows ------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def t(self) -> int:
        """Last known outer step."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Outer steps of the job."""

    @property
    def progress(self) -> float:
        """The share of the job that is done, 0..1: the same on all ranks of a unit at the same local step, and never less than before."""
        return 1.0 if self.done else self._progress.share(self.step_count, self.steps)

    @property
    @abstractmethod
    def step_count(self) -> int:
        """Local steps of this process."""

    @property
    @abstractmethod
    def may_step(self) -> bool:
        """The model holds the job's parameters, and the next local step may be done now."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """The job is over, and the final parameters are in the model."""

    @property
    @abstractmethod
    def draining(self) -> bool:
        """The unit drains: there is no next step."""

    @property
    @abstractmethod
    def who(self) -> str:
        """Who takes the batches, for an error message about them."""

    @property
    @abstractmethod
    def why_none(self) -> str:
        """Why `take` returns None, in words that follow the name of the unit."""

    # --- what it does -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Prepare for the first step: the model holds the job's parameters. Do now what would make the first boundaries slow."""
        self._peers.holds_parameters()
        self.link.heartbeat.holds_parameters()
        self._model.warm_up()

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Wait until there may be something to do at the boundary, at most `seconds`."""

    @abstractmethod
    def boundary(self, *, in_step: bool = False) -> None:
        """Do what is due between two steps. Raises `Leave` when the syncer refuses this unit for good.

        `in_step`: the program has updated its parameters, but `stepped` has not counted the step yet.
        """

    @abstractmethod
    def take(self, count: int) -> NDArray[np.int64] | None:
        """Return the sequence numbers of this process's next batch, int64 [count]. None if there are none now."""

    @abstractmethod
    def ask_for_work(self, batch_size: int, batches: int | None, ahead: int) -> None:
        """Ask for samples if there are too few for the next steps.

        Args:
            batch_size: samples of this process's batch
            batches: how many batches to hold. None: enough for some time of training
            ahead: how many batches the program may hold before a step settles them
        """

    @abstractmethod
    def stepped(self, tokens: int, loss: float | None, step_seconds: float, batches: int | None) -> None:
        """Note that a local step is done.

        Args:
            loss: NaN or None if unknown
            batches: how many of the oldest batches the step settles. None: the program feeds itself
        """

    def reads(self, data: str) -> None:
        """Note what the program's sequence numbers stand for, which must be the same in every unit and rank. Empty if it does not say."""
        self.link.set_data(data)

    def restore(self) -> None:
        """Put the final parameters back, after the program has trained on although the job is done."""
        self._model.finish()

    def changed(self) -> list[str]:
        """Return the tensors that do not hold the final values. For a job that is done. Waits for the device."""
        return self._model.changed()

    @abstractmethod
    def drain(self) -> None:
        """Note that the process was told to end. A signal handler calls this, so it only sets a flag."""

    @abstractmethod
    def close(self) -> None:
        """Leave in order, with a Bye."""

    def abandon(self, error: BaseException | None) -> None:
        """Leave at once: the program has raised `error`, or the syncer has refused the unit (None)."""
        self._close_state()
        self.link.close(None)

    # --- for both kinds -----------------------------------------------------------------------------------------------

    def _close_state(self) -> None:
        self._peers.close()

    def _connect_peers(self, take_parameters: Callable[[], None], overwritten: Callable[[], None]) -> None:
        """Give the peers access to the model. The arguments are those of `Model`."""
        self._peers.connect(Model(take_parameters, overwritten), self.link.heartbeat.tell)

    def _adopt(self, fragment: int, ready: Ready, t: int, tokens: int, step: int) -> None:
        """Overwrite the fragment with its version of outer step `t`, after local step `step`. `tokens` is as in `Received`."""
        self._model.adopt(fragment, ready)
        self._progress.adopted(step, t, tokens)

    def _first_values(self) -> list[Float32Array]:
        """Return the model's own values, with which this unit seeds the job: for each fragment float32 [size]."""
        _log.info("unit %s seeds the job", self._unit)
        return self._model.values()

    def _warn_of_restart(self, before: int, after: int) -> None:
        """Warn if the syncer has begun a new generation. `before` is 0 if there was none before."""
        if before not in (0, after):
            _log.warning("the syncer continues from outer step %d without this unit's latest work; this unit takes its parameters", self.t)

    def _report(self, state: UnitState, step_seconds: float = math.nan, loss: float = math.nan) -> None:
        """Report how far the unit is. `step_seconds` and `loss` are those of a new step, else NaN."""
        progress = Progress(
            local_step=state.step,
            steps=state.fragment_steps,
            tokens=state.fragment_tokens,
            step_seconds=step_seconds,
            loss=loss,
            samples_done=state.samples_done,
            tokens_done=state.tokens_done,
            t=state.t,
            own_data=state.feeds_itself,
        )
        self.link.progress(state.generation, progress)
