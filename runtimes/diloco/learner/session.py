"""A training program's part in a job: three calls between its model and the syncer.

    session = Session.join(store, framework="torch")
    for batch in session.batches(load, batch_size=32):
        loss = train_on(batch)
        session.step(tokens=batch.size, loss=loss)
    session.evaluate(held_out_loss=evaluate(), tokens=n)
    session.close()
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from diloco.learner.store import ParameterStore


class Session:
    """One learner unit's membership in a job. Every method is called from the training thread (the main thread)."""

    @classmethod
    def join(cls, store: ParameterStore, *, framework: str, environment: Mapping[str, str] = os.environ) -> Session:
        """Read the contract from `environment`, connect to the syncer, and block until the syncer's current parameters are in
        `store` (or `store`'s parameters have seeded the job). `framework` is told to the syncer ("torch", "jax", "numpy").

        Installs a handler for SIGTERM that drains: the step under way finishes, `batches` ends, `close` exits with 143.
        Raises SystemExit with `contract.Exit.BAD_CONTRACT` for a missing or wrong environment, with the matching `Exit` when
        the syncer refuses this learner for good, and with `Exit.DRAINED` when SIGTERM comes while it waits.
        """
        raise NotImplementedError

    def batches[T](self, source: Callable[[NDArray[np.int64]], T], batch_size: int) -> Iterator[T]:
        """`source(numbers)` for one batch of work after the other, until the job is done or this unit drains.

        `numbers` is int64 [batch_size]: sequence numbers of samples that the syncer leased to this unit and to nobody else; `source`
        maps them to a batch deterministically. Follow each batch with one `step`. The loop ends by itself; code after it runs for
        `done` as for `draining`.
        """
        raise NotImplementedError

    def step(self, *, tokens: int, loss: float | None = None) -> None:
        """Call after every local optimizer step, with the number of real tokens of its batch and, where cheap, its loss.

        Never waits for the network. Copies fragments that the syncer asked for to host memory, adopts complete broadcasts by
        overwriting them in the store, and stretches the step by the node's simulated relative speed.
        """
        raise NotImplementedError

    @property
    def done(self) -> bool:
        """The job reached its last outer step, and the final parameters are in the store."""
        raise NotImplementedError

    @property
    def draining(self) -> bool:
        """SIGTERM was received: `batches` ends after the step under way."""
        raise NotImplementedError

    @property
    def step_count(self) -> int:
        """Local steps of this process, from 0."""
        raise NotImplementedError

    @property
    def t(self) -> int:
        """Last outer step heard of, on the syncer's clock."""
        raise NotImplementedError

    @property
    def steps(self) -> int:
        """T, the outer step at which the job ends: with `t` the base of an inner learning-rate schedule on the global clock."""
        raise NotImplementedError

    def evaluate(self, held_out_loss: float, tokens: int) -> None:
        """Report the loss of the final parameters on held-out data, a mean over `tokens` tokens. Call it when `done`."""
        raise NotImplementedError

    def close(self) -> None:
        """Say Bye and disconnect. Raises SystemExit(`Exit.DRAINED`) when this unit drained; returns when the job is done."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """`close`, but an exception of the training program goes on as it is, and the unit leaves without Bye."""
        raise NotImplementedError
