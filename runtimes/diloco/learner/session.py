"""A training program's part in a job: three calls between its model and the syncer.

session = Session.join(store, framework="torch")
for batch in session.batches(load, batch_size=32):
    loss = train_on(batch)
    session.step(tokens=batch.size, loss=loss)
session.evaluate(held_out_loss=evaluate(), tokens=n)
session.close()

What happens between two steps is decided by `unit_plan`, purely, and carried out by `plan_executor`.

See docs/decisions/0151-step-boundary.md.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.codec import coding_for
from diloco.algorithm.fragments import Fragment, make_fragments
from diloco.algorithm.layout import Layout, LayoutError
from diloco.contract import Exit
from diloco.environment import ContractError
from diloco.learner.config import LearnerConfig, read_learner_config
from diloco.learner.connection import Connection
from diloco.learner.forks import let_forked_children_end
from diloco.learner.inbox import Inbox
from diloco.learner.leave import leave, log_to_stderr
from diloco.learner.plan_executor import PlanExecutor
from diloco.learner.step_timer import StepTimer
from diloco.learner.store import ParameterStore
from diloco.learner.syncer_link import SyncerLink
from diloco.learner.timetable import timetable
from diloco.learner.unit_plan import new_unit, plan_boundary
from diloco.learner.work import AHEAD_BATCHES, LeasedWork
from diloco.protocol.channel import Keepalive
from diloco.protocol.diloco_pb2 import Bye, Evaluation, FrozenTensor, Hello, Progress, Tensor
from diloco.protocol.tls import TlsError, WrongIdentity
from diloco.wording import plural

_log = logging.getLogger(__name__)

_POLL = 0.1
"""While it waits, the training thread checks for SIGTERM this often, seconds."""
_WAIT_LOG_INTERVAL = 5.0
"""While it waits, the training thread logs that this often, seconds."""
_MOST_AT_ONCE = 16 << 20
"""Elements that the boundary of a short step moves at most, unless a single fragment is larger: 64 MiB, for whose copy a processor needs
10 ms."""
_SHORT_STEP = 0.5
"""The boundary of a longer step, seconds, moves as much more: the copies take 2 % of its time."""


def most_at_once(step_seconds: float) -> int:
    """Elements that the boundary after a step of so many seconds moves at most."""
    return int(_MOST_AT_ONCE * max(1.0, step_seconds / _SHORT_STEP))


class Session:
    """One learner unit's membership in a job. Every method is called from the training thread (the main thread)."""

    @classmethod
    def join(
        cls,
        store: ParameterStore,
        *,
        framework: str,
        environment: Mapping[str, str] = os.environ,
        on_adopt: Callable[[Sequence[str]], None] | None = None,
        keepalive: Keepalive = Keepalive(),  # noqa: B008 - frozen
    ) -> Session:
        """Read the contract from `environment`, connect to the syncer, and block until the syncer's current parameters are in
        `store` (or `store`'s parameters have seeded the job). `framework`: its name for the syncer's log ("torch", "jax", "numpy").
        `on_adopt` is called on the training thread with the names of the tensors that were overwritten just now, here as in `step`.

        Installs a handler for SIGTERM that drains: the step under way finishes, `batches` ends, `close` exits with 143.
        Raises `Leave`, a SystemExit: with `contract.Exit.BAD_CONTRACT` for a missing or wrong environment, with the matching
        `Exit` when the syncer refuses this learner for good, and with `Exit.DRAINED` when SIGTERM comes while it waits.
        """
        log_to_stderr()
        try:
            config = read_learner_config(environment)
            if config.ranks > 1:
                raise ContractError(
                    f"unit {config.unit} runs as {config.ranks} processes on {plural(config.hosts, 'host')}, and this version exchanges "
                    "the parameters of a single process only. Use a pool with hosts: 1, and one process on it."
                )
        except ContractError as error:
            raise leave(Exit.BAD_CONTRACT, str(error)) from error
        try:
            config.tls.examine(config.identity)
        except WrongIdentity as error:
            raise leave(Exit.REFUSED_UNAUTHENTICATED, str(error)) from error
        except TlsError as error:
            _log.warning("%s", error)  # it may be renewed at any moment; the connection waits for that
        try:
            layout = Layout(store.specs(), store.frozen())
            fragments = make_fragments(layout, config.job.training.fragments)
        except LayoutError as error:
            raise leave(Exit.REFUSED_LAYOUT, f"this model cannot be trained in job {config.job.name}: {error}") from error
        training = config.job.training
        inbox = Inbox(training.overlap_steps)
        connection = Connection(
            config.syncer,
            config.tls,
            config.host_name,
            _hello(config, layout, framework),
            fragments,
            store,
            inbox,
            keepalive,
            training.overlap_steps,
        )
        session = cls(store, fragments, config, inbox, connection, on_adopt)
        session._wait_for_parameters()
        return session

    def __init__(
        self,
        store: ParameterStore,
        fragments: Sequence[Fragment],
        config: LearnerConfig,
        inbox: Inbox,
        connection: SyncerLink,
        on_adopt: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        """Use `join`."""
        training = config.job.training
        self._table = timetable([fragment.size for fragment in fragments], training.sync_interval, training.overlap_steps)
        self._unit = config.unit
        self._inbox = inbox
        self._connection = connection
        self._timer = StepTimer(config.relative_speed)
        self._work = LeasedWork()
        self._state = new_unit(len(fragments), training.steps)
        self._executor = PlanExecutor(config.unit, store, fragments, coding_for(training.compression), self._work, connection, on_adopt)
        self._batch_size = 0
        self._draining = False
        self._closed = False
        self._former_handler: Callable[[int, FrameType | None], object] | int | None = None

    # --- what a training loop calls -----------------------------------------------------------------------------------

    def batches[T](self, source: Callable[[NDArray[np.int64]], T], batch_size: int) -> Iterator[T]:
        """`source(numbers)` for one batch of work after the other, until the job is done or this unit drains.

        `numbers` is int64 [batch_size]: sequence numbers of samples that the syncer leased to this unit only; `source`
        maps them to a batch deterministically. Follow each batch with one `step`. The loop ends by itself; code after it runs for
        `done` as for `draining`. Raises `Leave` when the syncer refuses this unit for good.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        self._batch_size = batch_size
        self._timer.restart()
        while (numbers := self._next_numbers(batch_size)) is not None:
            if self._state.in_hand is not None:
                raise RuntimeError("call step() once after each batch: without it the batch does not count and nothing is exchanged")
            self._state = self._state.take_batch(batch_size)
            yield source(numbers)

    def step(self, *, tokens: int, loss: float | None = None) -> None:
        """Call after every local optimizer step, with the number of real tokens of its batch and, where cheap, its loss.

        Never waits for the network. Keeps the values of a fragment that the syncer asked for, overwrites one whose broadcast is
        complete, and stretches the step by the node's simulated relative speed. Raises `Leave` when the syncer refuses this unit for good.
        """
        if tokens < 0:
            raise ValueError(f"tokens must not be negative, not {tokens}")
        self._timer.lap(lambda: self._draining)
        self._state = self._state.count(tokens)
        self._report_progress(loss)
        self._boundary()
        self._ask_for_work()

    def evaluate(self, held_out_loss: float, tokens: int) -> None:
        """Report the loss of the final parameters on held-out data, a mean over `tokens` tokens. Call it when `done`."""
        self._boundary()
        self._connection.evaluated(Evaluation(held_out_loss=held_out_loss, tokens=tokens, t=self.t))

    def close(self) -> None:
        """Say Bye and disconnect. Raises `Leave` with `Exit.DRAINED` when this unit drained; returns when the job is done."""
        if self._closed:
            return
        self._end(Bye(drained=not self.done, samples_done=self._state.samples_done, tokens_done=self._state.tokens_done))
        if self._draining and not self.done:
            raise leave(
                Exit.DRAINED,
                f"unit {self._unit} drained after {plural(self.step_count, 'step')} of this process; its uncommitted work is free again",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """`close`, but an exception of the training program goes on as it is, and the unit leaves without Bye."""
        if kind is None:
            self.close()
        elif not self._closed:
            self._end(None)

    @property
    def done(self) -> bool:
        """The job reached its last outer step, and the final parameters are in the store."""
        return self._state.done

    @property
    def draining(self) -> bool:
        """SIGTERM was received: `batches` ends after the step under way."""
        return self._draining

    @property
    def step_count(self) -> int:
        """Local steps of this process, from 0."""
        return self._state.step

    @property
    def t(self) -> int:
        """Last known outer step, on the syncer's clock."""
        return self._state.t

    @property
    def steps(self) -> int:
        """T, the outer step at which the job ends: with `t` the base of an inner learning-rate schedule on the global clock."""
        return self._state.steps

    # --- joining and leaving ------------------------------------------------------------------------------------------

    def _wait_for_parameters(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._former_handler = signal.signal(signal.SIGTERM, self._drain)
            let_forked_children_end(self._drain)
        self._connection.start()
        began = logged = time.monotonic()
        while self._state.missing:
            if self._draining:
                self.close()
            self._inbox.wait(_POLL)
            self._boundary()
            if (now := time.monotonic()) - logged > _WAIT_LOG_INTERVAL:
                _log.info("unit %s waits for the job's parameters for %.0f s now", self._unit, now - began)
                logged = now
        self._executor.warm_up()
        _log.info("unit %s trains from outer step %d of %d", self._unit, self.t, self.steps)
        self._timer.restart()

    def _drain(self, signum: int, frame: FrameType | None) -> None:
        self._draining = True

    def _end(self, bye: Bye | None) -> None:
        self._closed = True
        self._connection.close(bye)
        if self._former_handler is not None:
            signal.signal(signal.SIGTERM, self._former_handler)

    # --- between two steps --------------------------------------------------------------------------------------------

    def _report_progress(self, loss: float | None) -> None:
        state = self._state
        progress = Progress(
            local_step=state.step,
            steps=state.fragment_steps,
            tokens=state.fragment_tokens,
            step_seconds=self._timer.step_seconds,
            loss=math.nan if loss is None else loss,
            samples_done=state.samples_done,
            tokens_done=state.tokens_done,
            t=state.t,
        )
        self._connection.progress(state.generation, progress)

    def _boundary(self) -> None:
        """Do what is due between two steps."""
        events = self._inbox.drain()
        self._executor.take(events)
        generation = self._state.generation
        plan, self._state = plan_boundary(self._state, events, self._table, most_at_once(self._timer.step_seconds))
        if generation not in (0, self._state.generation):
            _log.warning("the syncer continues from outer step %d without this unit's latest work; this unit takes its parameters", self.t)
        self._executor.carry_out(plan, self._state)
        if plan.refused is not None:
            self._end(None)
            raise leave(plan.refused.status, plan.refused.message)

    # --- work ---------------------------------------------------------------------------------------------------------

    def _next_numbers(self, count: int) -> NDArray[np.int64] | None:
        """The sequence numbers of the next batch, int64 [count]; None: there is no next step."""
        began = logged = time.monotonic()
        while not (self.done or self._draining):
            numbers = self._work.take(count)
            if numbers is not None:
                if (waited := time.monotonic() - began) > 0:
                    self._timer.idle(waited)
                return numbers
            self._ask_for_work()
            self._inbox.wait(_POLL)
            self._boundary()
            if (now := time.monotonic()) - logged > _WAIT_LOG_INTERVAL:
                _log.warning("unit %s has no work left and waits for the syncer for %.0f s now", self._unit, now - began)
                logged = now
        return None

    def _ask_for_work(self) -> None:
        if not self._batch_size or self.done:
            return
        self._connection.set_initial_request(AHEAD_BATCHES * self._batch_size)
        asked = self._work.asked
        samples = self._work.wanted(self._batch_size, self._timer.step_seconds)
        if samples and not self._connection.want(self._state.generation, samples):
            self._work.asked = asked


def _hello(config: LearnerConfig, layout: Layout, framework: str) -> Hello:
    return Hello(
        job_uid=config.job.uid,
        unit=config.unit,
        attempt=config.attempt,
        session=secrets.token_bytes(16),
        framework=framework,
        tensors=[Tensor(name=x.name, shape=x.shape, embedding=x.embedding) for x in layout.tensors],
        fingerprint=layout.fingerprint,
        frozen=[FrozenTensor(name=x.name, shape=x.shape, digest=x.digest) for x in layout.frozen],
    )
