"""The functional face of a session: parameters go in, parameters come out.

See docs/decisions/0081-jax-session.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol, Self

import jax
import numpy as np
from numpy.typing import NDArray

from diloco.jax.store import TreeStore


class Driver(Protocol):
    """What a session drives: `diloco.learner.session.Session` in a job."""

    def batches[T](self, source: Callable[[NDArray[np.int64]], T], batch_size: int) -> Iterator[T]: ...
    def step(self, *, tokens: int, loss: float | None = None) -> None: ...
    @property
    def done(self) -> bool: ...
    @property
    def draining(self) -> bool: ...
    @property
    def step_count(self) -> int: ...
    @property
    def t(self) -> int: ...
    @property
    def steps(self) -> int: ...
    def evaluate(self, held_out_loss: float, tokens: int) -> None: ...
    def close(self) -> None: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None: ...


class Session[Tree]:
    """One learner unit's membership in a job, for a program whose parameters are a pytree. Used from the main thread only."""

    def __init__(self, driver: Driver, store: TreeStore[Tree]) -> None:
        self._driver = driver
        self._store = store
        self._loss: jax.Array | None = None

    @property
    def params(self) -> Tree:
        """The current parameters: after `join` the job's, after `step` what it returned, after the loop the final ones when `done`."""
        return self._store.hand_out()

    def batches[T](self, source: Callable[[NDArray[np.int64]], T], batch_size: int) -> Iterator[T]:
        """`source(numbers)` for one batch of this unit's own work after the other, until the job is done or this unit drains.

        `numbers` is int64 [batch_size]: sequence numbers of samples that no other unit has; `source` maps them to a batch,
        deterministically. Follow each batch with one `step`.
        """
        return self._driver.batches(source, batch_size)

    def step(self, params: Tree, *, tokens: int, loss: float | jax.Array | None = None) -> Tree:
        """Call after every optimizer step, with its parameters, the number of real tokens of its batch and, where cheap, its loss;
        train on with the parameters it returns.

        Never waits for the network. A `loss` that is still being computed is not waited for either: it is reported one step later,
        so that the host stays at most one step ahead of the device. Raises ValueError when `params` changed structure, shape or type.
        """
        self._store.take_back(params)
        ready: float | None = None
        if isinstance(loss, jax.Array):
            ready, self._loss = (None if self._loss is None else float(self._loss)), loss
        elif loss is not None:
            ready = float(loss)
        self._driver.step(tokens=tokens, loss=ready)
        return self._store.hand_out()

    @property
    def done(self) -> bool:
        """The job reached its last outer step, and `params` are the final parameters."""
        return self._driver.done

    @property
    def draining(self) -> bool:
        """SIGTERM was received: `batches` ends after the step under way."""
        return self._driver.draining

    @property
    def step_count(self) -> int:
        """Local steps of this process, from 0."""
        return self._driver.step_count

    @property
    def t(self) -> int:
        """Last known outer step, on the syncer's clock."""
        return self._driver.t

    @property
    def steps(self) -> int:
        """T, the outer step at which the job ends."""
        return self._driver.steps

    def evaluate(self, held_out_loss: float, tokens: int) -> None:
        """Report the loss of the final parameters on held-out data, a mean over `tokens` tokens. Call it when `done`."""
        self._driver.evaluate(held_out_loss, tokens)

    def close(self) -> None:
        """Say Bye and disconnect. Raises SystemExit(`Exit.DRAINED`) when this unit drained; returns when the job is done."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._driver.__exit__(kind, error, traceback)
