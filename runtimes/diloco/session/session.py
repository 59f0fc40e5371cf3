"""A training program's session with its job. A loop needs three calls:

session = Session.join(store, framework="torch")
for batch in session.batches(load, batch_size=32):
    loss = train_on(batch)              # one update of the optimizer
    session.step(tokens=batch.size, loss=loss)
session.evaluate(held_out_loss=evaluate(), tokens=n)
session.close()

The session's `Member` does what is due between two steps.

See docs/decisions/0151-step-boundary.md.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from diloco.contract import Exit
from diloco.learner.final_values import complaint
from diloco.learner.heartbeat_state import check_pause, check_reason
from diloco.learner.inner_state import CountedState
from diloco.learner.leave import LoopError, leave, log_to_stderr
from diloco.learner.member import Member
from diloco.learner.store import ParameterStore
from diloco.protocol.diloco_pb2 import Evaluation, FromLearner
from diloco.ranks.world import World
from diloco.session.batch_numbers import BatchNumbers
from diloco.session.data_feed import LeasedBatches, Shard, shard_of
from diloco.session.forks import let_forked_children_end
from diloco.session.joining import make_member, read_config
from diloco.session.loop_check import MOST_AHEAD, LoopCheck
from diloco.session.step_timer import StepTimer
from diloco.wording import plural

_log = logging.getLogger(__name__)

type Updates = Callable[[], Sequence[int] | None]
"""Returns how many updates each optimizer of the program has made; None if that is not known."""

_POLL = 0.1
"""Seconds between two checks for SIGTERM, while the training thread waits."""
_WAIT_LOG_INTERVAL = 5.0
"""Seconds between two lines of the log that say that the training thread still waits."""
_TRAINED_CHECKED = 64
"""Steps between two checks that the program still trains the parameters that joined."""


@dataclass(frozen=True, slots=True)
class AdapterHooks:
    """What a session calls in the adapter of its framework, on the training thread."""

    on_adopt: Callable[[Sequence[str]], None] | None = None
    """Called in `join` and in `step` with the names of tensors that have just been overwritten."""
    updates: Updates = lambda: None
    """For `step` to compare with."""
    stepped: Callable[[], None] = lambda: None
    """Called by `step` before anything is overwritten."""
    trained: Callable[[], None] = lambda: None
    """Called now and then and at the end. Raises LoopError if the program trains other parameters than those of the store."""


@dataclass(frozen=True, slots=True)
class SessionParts:
    """What a session is made of."""

    unit: str
    member: Member
    timer: StepTimer
    hooks: AdapterHooks
    inner: CountedState | None = None


class JobSession:
    """One learner unit's membership in a job. Subclasses add `step`, whose form differs between frameworks. Call every method from the
    training thread (the main thread)."""

    @classmethod
    def join(
        cls,
        store: ParameterStore,
        *,
        framework: str,
        environment: Mapping[str, str] | None = None,
        hooks: AdapterHooks | None = None,
        world: World | None = None,
        how_to_meet: str = "start one process",
        inner: CountedState | None = None,
        make: Callable[[SessionParts], Self] | None = None,
    ) -> Self:
        """Connect to the syncer, and block until the syncer's current parameters are in `store`, or `store`'s have seeded the job.

        Installs a handler for SIGTERM that drains: the step under way finishes, `batches` ends, `close` exits with 143.
        Raises `Leave`, a SystemExit: with `contract.Exit.BAD_CONTRACT` for a missing or wrong environment, with the matching
        `Exit` when the syncer refuses this learner for good, and with `Exit.DRAINED` when SIGTERM comes while it waits.

        Args:
            framework: its name in the syncer's log ("torch").
            environment: the contract's variables; None: the process's own environment.
            hooks: None if there are none.
            world: the other processes of this unit, which all join with one model; None if there are none.
            how_to_meet: what a program does so that its framework knows the other processes, for an error.
            inner: the state beside the parameters, which peers may give and take; None if it is not known.
            make: makes the session, by default of this class.
        """
        log_to_stderr()
        environment = os.environ if environment is None else environment
        config = read_config(environment, framework, 1 if world is None else world.ranks, how_to_meet)
        hooks = AdapterHooks() if hooks is None else hooks
        member = make_member(config, store, framework, world, hooks.on_adopt, inner)
        session = (make or cls)(SessionParts(config.unit, member, StepTimer(config.relative_speed), hooks, inner))
        session._wait_for_parameters()  # noqa: SLF001 - of this class
        return session

    def __init__(self, parts: SessionParts) -> None:
        """Call `join` instead."""
        self._unit = parts.unit
        self._member = parts.member
        self._link = parts.member.link
        self._timer = parts.timer
        self._updates = parts.hooks.updates
        self._stepped = parts.hooks.stepped
        self._trained = parts.hooks.trained
        self._inner = parts.inner
        self._check = LoopCheck()
        self._put_back = False
        self._numbers = BatchNumbers(self._member, self._check, begins=lambda: self._timer.restart(), wait_until=self._wait_for_step)
        self._pause: tuple[str, float] | None = None
        self._finish_asked = False
        self._closed = False
        self._former_handler: Callable[[int, FrameType | None], object] | int | None = None

    # --- what a training loop calls -----------------------------------------------------------------------------------

    def batches[T](self, source: Callable[[NDArray[np.int64]], T], batch_size: int, *, ahead: int = MOST_AHEAD) -> Iterator[T]:
        """Yield `source(numbers)` for one batch of work after the other, until the job is done or this unit drains.

        `numbers` is int64 [batch_size]: sequence numbers of samples that the syncer leased to this unit only; `source` must map the same
        numbers to the same batch. `step` settles the oldest batches; up to `ahead` may be unsettled. Unsettled batches come again when the
        program begins a new loop, and go back to the syncer when the program ends. The loop ends by itself; the code after it runs both
        when the job is `done` and when the unit is `draining`. Raises `Leave` when the syncer refuses this unit for good, and LoopError.
        """
        return map(source, self._numbers.loop(batch_size, ahead))

    def numbers(self, batch_size: int, *, samples: int | None = None, seed: int = 0, ahead: int = MOST_AHEAD) -> LeasedBatches:
        """Return the same batches as a batch sampler for data loaders: indices into a data set of `samples` samples.

        Sequence number n stands for a sample of epoch n // samples. In each epoch every sample comes once among all units, in an order that
        depends on `seed` and the epoch. The syncer refuses a unit whose `samples` or `seed` differ from the others'. Without `samples` the
        indices are the sequence numbers.
        """
        data = f"samples={samples}, seed={seed}" if samples is not None else ""
        return LeasedBatches(lambda: self._numbers.loop(batch_size, ahead, data), batch_size, samples, seed)

    def shards(self, count: int, *, seed: int = 0) -> Iterator[Shard]:
        """Yield shards of a streamed data set that is cut into `count` shards, until the job is done or this unit drains.

        No other unit reads the shard in the same epoch. A shard counts once the program has asked for the next one and done a step; if the
        unit ends before, another unit reads the shard from its beginning. Leave the loop over a shard's samples when `over` is true.
        """
        if count < 1:
            raise ValueError(f"count must be at least 1, not {count}: there is nothing to train on")
        for numbers in self._numbers.loop(1, MOST_AHEAD, f"shards={count}, seed={seed}", shards=True):
            yield shard_of(int(numbers[0]), count, seed)
            self._check.shard_read()

    def _count_step(self, tokens: int, loss: float | None, batches: int) -> None:
        self._check.called(threading.current_thread().name)
        if self.done:
            self._put_back_final()
            return
        tokens, settled = self._check.step(tokens, batches, self._updates())
        if self.step_count % _TRAINED_CHECKED == 0:
            self._trained()
        self._stepped()
        if self._inner is not None:
            self._inner.steps += 1  # before the boundary, at which a peer may get it
        self._timer.lap(lambda: self._member.draining)
        self._member.stepped(tokens, loss, self._timer.step_seconds, settled)
        self._boundary()
        self._numbers.ask_for_more()
        # A rank that has overtaken its leader waits here for the leader's plan. So does a unit that rests: waiting in `batches` alone would
        # not stop a program that holds batches for many steps, or takes none from the session.
        self._wait_for_step(lambda: self._member.may_step or self.over)

    def evaluate(self, held_out_loss: float, tokens: int) -> None:
        """Report the loss of the final parameters on held-out data, a mean over `tokens` tokens. Call it when `done` is true."""
        self._trained()
        self._boundary()
        self._link.post(FromLearner(evaluation=Evaluation(held_out_loss=held_out_loss, tokens=tokens, t=self.t)))

    @contextlib.contextmanager
    def paused(self, reason: str, at_most: float) -> Iterator[None]:
        """Announce that the next step comes late, because of an evaluation, a checkpoint, a compilation.

        `reason`: a few words for people. `at_most`: seconds; a longer pause counts as a stall, and the unit is replaced. All ranks of a
        unit must call this. After `close` it announces nothing. Raises ValueError if reason or time are not allowed.
        """
        check_pause(reason, at_most)
        if self._closed:
            yield
            return
        began = time.monotonic()
        outer, self._pause = self._pause, (reason, began + at_most)
        self._link.heartbeat.paused(reason, at_most)
        try:
            yield
        finally:
            self._pause, now = outer, time.monotonic()
            reason, until = outer or ("", now)  # a pause within another: the outer one goes on
            self._link.heartbeat.paused(reason, max(0.0, until - now))
            if outer is None:  # the outermost one counts the time once
                self._timer.idle(now - began)

    def finish(self, reason: str) -> None:
        """End the job now, for all units: each takes the final parameters, and the job is complete. `reason`: a few words for people.

        Nothing ends at once: go on until `batches` ends or `done` is true. A unit of one process may also leave its loop: `close` waits.
        The first call stands; a second one, or one of another unit, changes nothing. All ranks of a unit must call this. Raises ValueError
        if the reason is not allowed.
        """
        check_reason("the end of a job", reason, "loss below 2.0")
        self._finish_asked = True
        self._link.heartbeat.finish(reason)

    def close(self) -> None:
        """Leave the job: say Bye and disconnect. Raises `Leave` with `Exit.DRAINED` if this unit drained.

        After `finish`, a unit of one process first waits for the end of the job. Without `finish`, before the job is done, the job goes on
        without this unit. Raises LoopError if the job is done and the model no longer holds the final parameters, or the program trained
        other parameters than those that joined.
        """
        if self._closed:
            return
        if self._finish_asked and self._member.ends_between_steps:
            self._wait_for(lambda: self.done or self.draining, "the end of the job")
        if not (self.done or self.draining):
            _log.warning(
                "unit %s leaves at outer step %d of %d, before the job is done: the job goes on without it, and its operator starts it "
                "again. Train until session.batches ends, or end the job for all units with session.finish(reason)",
                self._unit,
                self.t,
                self.steps,
            )
        wrong = self._wrong_at_the_end() if self.done else None
        self._end(self._member.close)
        if wrong is not None:
            raise wrong
        if self.draining and not self.done:
            raise leave(
                Exit.DRAINED,
                f"unit {self._unit} drained after {plural(self.step_count, 'step')} of this process; its uncommitted work is free again",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Call `close`; after an exception of the training program leave without Bye instead, and let the exception pass."""
        if kind is None:
            self.close()
        elif not self._closed:
            self._end(lambda: self._member.abandon(error))

    @property
    def done(self) -> bool:
        """The job reached its last outer step, and the final parameters are in the store."""
        return self._member.done

    @property
    def draining(self) -> bool:
        """This unit has received SIGTERM: `batches` ends after the step under way."""
        return self._member.draining

    @property
    def over(self) -> bool:
        """There is no next step: the job is done, or this unit drains. A loop over the program's own loader must end then."""
        return self.done or self.draining

    @property
    def step_count(self) -> int:
        """Local steps of this process, from 0."""
        return self._member.step_count

    @property
    def optimizer_steps(self) -> int:
        """Local steps that made the inner optimizer's state: those of this process, and those in the state that it began with, which came
        from a peer or was its own stored one. A learning rate's warm-up follows this count (`diloco.schedules`)."""
        return self.step_count if self._inner is None else self._inner.steps

    @property
    def t(self) -> int:
        """The last known outer step, on the syncer's clock."""
        return self._member.t

    @property
    def steps(self) -> int:
        """T, the outer step at which the job ends."""
        return self._member.steps

    @property
    def progress(self) -> float:
        """The share of the job that is done, 0..1, on the job's clock. A learning rate's decay follows it (`diloco.schedules`).

        It is finer than whole outer steps, equal on all ranks of a unit at the same local step, and never falls in this process.
        """
        return self._member.progress

    # --- joining and leaving ------------------------------------------------------------------------------------------

    def _wait_for_parameters(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._former_handler = signal.signal(signal.SIGTERM, self._drain)
            let_forked_children_end(self._drain)
        self._link.start()
        self._wait_for(lambda: self._member.may_step or self.done, "the job's parameters")
        self._member.begin()
        _log.info("unit %s trains from outer step %d of %d", self._unit, self.t, self.steps)
        self._timer.restart()

    def _wait_for(self, come: Callable[[], bool], what: str) -> None:
        self._wait_until(lambda: come() or self.draining, lambda: f"waits for {what}", logging.INFO)
        if not come():
            self.close()

    def _wait_until(self, come: Callable[[], bool], why: Callable[[], str], level: int = logging.WARNING) -> float:
        """Pass step boundaries until `come` returns true. Returns the seconds that this took. `why`: what the log says about the wait,
        after the name of the unit."""
        began = logged = time.monotonic()
        while not come():
            self._member.wait(_POLL)
            self._boundary()
            if (now := time.monotonic()) - logged > _WAIT_LOG_INTERVAL:
                _log.log(level, "unit %s %s for %.0f s now", self._unit, why(), now - began)
                logged = now
        return time.monotonic() - began

    def _boundary(self) -> None:
        self._member.boundary(in_step=self._check.in_step(self._updates()))

    def _drain(self, signum: int, frame: FrameType | None) -> None:
        self._member.drain()

    def _wrong_at_the_end(self) -> LoopError | None:
        """Return why the program does not hold the job's final model; None if it does."""
        try:
            self._trained()
        except LoopError as error:
            return error
        changed = self._member.changed()
        return LoopError(complaint(changed)) if changed else None

    def _end(self, leave_job: Callable[[], None]) -> None:
        self._closed = True
        leave_job()
        if self._former_handler is not None:
            signal.signal(signal.SIGTERM, self._former_handler)

    def _wait_for_step(self, come: Callable[[], bool]) -> None:
        """Wait for what the next step needs. The time is no part of the step."""
        self._timer.idle(self._wait_until(come, lambda: self._member.why_none))

    def _put_back_final(self) -> None:
        """Overwrite the model with the final parameters again. The log warns about this once."""
        if not self._put_back:
            _log.warning(
                "unit %s trained on once the job was done: its final parameters are put back. Leave the loop at session.over", self._unit
            )
        self._put_back = True
        self._member.restore()


class Session(JobSession):
    """One learner unit's membership in a job, for a program whose parameters change in place."""

    def step(self, *, tokens: int, loss: float | None = None, batches: int = 1) -> None:
        """Call this after every update of the local optimizer.

        Never waits for the syncer's answer. But a rank that has overtaken its unit's leader waits for the leader, and a unit that is ahead
        of the job rests while fewer learners than the quorum train. Keeps the values of a fragment that the syncer asked for, overwrites a
        fragment whose broadcast is complete, and stretches the step by the node's simulated relative speed. Once the job is done, puts the
        final parameters back and counts nothing. Raises `Leave` when the syncer refuses this unit for good, and LoopError when the numbers
        cannot be true.

        Args:
            tokens: real tokens of this process's batches of the update, without padding.
            loss: loss of the update, if it is cheap to have.
            batches: how many of the session's batches the update used. They are settled, the oldest first. Without effect in a program that
                takes no batches from the session.
        """
        self._count_step(tokens, loss, batches)
