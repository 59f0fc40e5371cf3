"""The functional face of a session: parameters and optimizer state go in, parameters and optimizer state come out.

See docs/decisions/0151-step-boundary.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self

import jax
import numpy as np
from numpy.typing import NDArray

from diloco.jax.inner_state import TreeState
from diloco.jax.masters import Masters
from diloco.jax.store import TreeStore
from diloco.learner.leave import LoopError
from diloco.session.data_feed import LeasedBatches, Shard
from diloco.session.loop_check import MOST_AHEAD


class Driver(Protocol):
    """What a session drives: `diloco.session.session.Session` in a job."""

    def batches[T](self, source: Callable[[NDArray[np.int64]], T], batch_size: int, *, ahead: int = MOST_AHEAD) -> Iterator[T]: ...
    def numbers(self, batch_size: int, *, samples: int | None = None, seed: int = 0, ahead: int = MOST_AHEAD) -> LeasedBatches: ...
    def shards(self, count: int, *, seed: int = 0) -> Iterator[Shard]: ...
    def step(self, *, tokens: int, loss: float | None = None, batches: int = 1) -> None: ...
    @property
    def done(self) -> bool: ...
    @property
    def draining(self) -> bool: ...
    @property
    def over(self) -> bool: ...
    @property
    def step_count(self) -> int: ...
    @property
    def optimizer_steps(self) -> int: ...
    @property
    def t(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def progress(self) -> float: ...
    def evaluate(self, held_out_loss: float, tokens: int) -> None: ...
    def paused(self, reason: str, at_most: float) -> AbstractContextManager[None]: ...
    def finish(self, reason: str) -> None: ...
    def close(self) -> None: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None: ...


class Session[Tree, State]:
    """One learner unit's membership in a job, for a program whose parameters are a pytree. Used from the main thread only."""

    def __init__(
        self,
        driver: Driver,
        store: TreeStore[Tree],
        opt_state: State,
        on_adopt: Callable[[Sequence[str], Tree, State], State] | None = None,
        masters: Masters | None = None,
        inner: TreeState[State] | None = None,
    ) -> None:
        """Begin with `masters`: those in `opt_state`, which follow adoptions; default: there are none. `inner`: what peers get of
        `opt_state`; default: nothing."""
        self._driver = driver
        self._store = store
        self._opt_state = opt_state
        self._forms = _forms(opt_state)
        self._on_adopt = on_adopt
        self._masters = masters
        self._inner = inner
        self._loss: jax.Array | None = None

    @property
    def params(self) -> Tree:
        """The current parameters: after `join` the job's, after `step` what it returned, after the loop the final ones when `done`. Raises
        LoopError where the program has donated them to a step whose result `step` has not got."""
        self._hand_out_once()
        params = self._store.held()
        if _is_deleted(params):  # at the end of the job those that are frozen still may be: the store has no copy
            raise _donated("session.params", "the parameters")
        return params

    @property
    def opt_state(self) -> State:
        """The optimizer's state that belongs to `params`. Raises LoopError where the program has donated it."""
        self._hand_out_once()
        if _is_deleted(self._opt_state):
            raise _donated("session.opt_state", "the optimizer's state")
        return self._opt_state

    def batches[T](self, source: Callable[[NDArray[np.int64]], T], batch_size: int, *, ahead: int = MOST_AHEAD) -> Iterator[T]:
        """Yield `source(numbers)` for one batch of this unit's own work after the other, until the job is done or this unit drains.

        `numbers` is int64 [batch_size]: sequence numbers of samples that no other unit has; `source` maps them to a batch,
        deterministically. `step` settles the oldest batches; up to `ahead` may be fetched before. Batches that were never settled come
        again when the program begins a new loop, and go back to the syncer when it ends. Raises LoopError.
        """
        return self._driver.batches(source, batch_size, ahead=ahead)

    def numbers(self, batch_size: int, *, samples: int | None = None, seed: int = 0, ahead: int = MOST_AHEAD) -> LeasedBatches:
        """Return the same batches as a batch sampler for data loaders, as indices into a data set of so many `samples`.

        Sequence number n stands for a sample of epoch n // samples: in each epoch every sample comes once among all units, in an order of
        its own that `seed` decides. Every unit must give the same `samples` and `seed`. Without `samples` the indices are the numbers.
        """
        return self._driver.numbers(batch_size, samples=samples, seed=seed, ahead=ahead)

    def shards(self, count: int, *, seed: int = 0) -> Iterator[Shard]:
        """Yield one shard after the other of a data set that is cut into `count`, for streams, until the job is done or this unit drains.

        No other unit reads the shard in the same epoch. It counts once the program asks for the next one and does a step; if the unit ends
        before, another one reads the shard from its beginning. Leave the loop over a shard when `over`.
        """
        return self._driver.shards(count, seed=seed)

    def step(
        self, params: Tree, opt_state: State, *, tokens: int, loss: float | jax.Array | None = None, batches: int = 1
    ) -> tuple[Tree, State]:
        """Call after every update of the optimizer, with its parameters, the optimizer's state, the number of real tokens of its batches
        and, where cheap, its loss. `batches`: how many of the session's batches the update was made from; they are settled, the oldest
        first. Train on with the parameters and the state that it returns. Once the job is done, these are the final parameters.

        Raises LoopError when the numbers cannot be true. Never waits for the network. A `loss` that is still being computed is not waited
        for either: it is reported one step later, so that the host stays at most one step ahead of the device. Raises ValueError when
        `params` or `opt_state` changed structure, shape or type.
        """
        if (forms := _forms(opt_state)) != self._forms:
            raise ValueError(f"the optimizer's state changed its form {_difference(self._forms, forms)}")
        if _is_deleted(opt_state):
            raise LoopError("the optimizer's state was donated to a step. Give session.step what that step returned")
        self._store.take_back(params)
        if self._masters is not None:
            self._masters.look_again(params, opt_state)
        self._keep(opt_state)
        ready: float | None = None
        if isinstance(loss, jax.Array):
            ready, self._loss = (None if self._loss is None else float(self._loss)), loss
        elif loss is not None:
            ready = float(loss)
        self._driver.step(tokens=tokens, loss=ready, batches=batches)
        return self._hand_out(), self._opt_state

    @property
    def done(self) -> bool:
        """The job reached its last outer step, and `params` are the final parameters."""
        return self._driver.done

    @property
    def draining(self) -> bool:
        """SIGTERM was received: `batches` ends after the step under way."""
        return self._driver.draining

    @property
    def over(self) -> bool:
        """There is no next step: the job is done, or this unit drains."""
        return self._driver.over

    @property
    def step_count(self) -> int:
        """Local steps of this process, from 0."""
        return self._driver.step_count

    @property
    def optimizer_steps(self) -> int:
        """Local steps behind `opt_state`: those of this process, and those of the state that it began with, of a peer or its own stored
        one. A learning rate's warm-up follows it, see `diloco.jax.schedule`."""
        return self._driver.optimizer_steps

    @property
    def t(self) -> int:
        """Last known outer step, on the syncer's clock."""
        return self._driver.t

    @property
    def steps(self) -> int:
        """T, the outer step at which the job ends."""
        return self._driver.steps

    @property
    def progress(self) -> float:
        """The share of the job that is done, 0..1; see `diloco.jax.schedule`."""
        return self._driver.progress

    def evaluate(self, held_out_loss: float, tokens: int) -> None:
        """Report the loss of the final parameters on held-out data, a mean over `tokens` tokens. Call it when `done`."""
        self._driver.evaluate(held_out_loss, tokens)

    def paused(self, reason: str, at_most: float) -> AbstractContextManager[None]:
        """Hold the program from its next step for long: evaluation, a checkpoint, compiling. `reason`: for people, in a few words.
        `at_most`: seconds; what takes longer counts as a stall, and the unit is replaced.

        All processes of a unit call it. Raises ValueError for a reason or a time that cannot be.
        """
        return self._driver.paused(reason, at_most)

    def finish(self, reason: str) -> None:
        """End the job now, for all units: each takes the final parameters, and the job is complete. `reason`: for people, in a few words.

        Nothing ends at once: go on until `batches` ends or `done` is true. A unit of one process may also leave its loop: `close` waits.
        What is said stands; said again, or by another unit, it changes nothing. All processes of a unit call it. Raises ValueError for a
        reason that cannot be.
        """
        self._driver.finish(reason)

    def close(self) -> None:
        """Say Bye and disconnect. Raises SystemExit(`Exit.DRAINED`) when this unit drained; returns when the job is done. After `finish` it
        waits for that."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._driver.__exit__(kind, error, traceback)

    def _hand_out_once(self) -> None:
        """Hand what is adopted while the program holds its parameters out with its next step: it goes on with those that it holds."""
        if not self._store.handed_out:
            self._hand_out()

    def _hand_out(self) -> Tree:
        paths = self._store.applied_paths()
        params = self._store.hand_out()
        if _is_deleted(self._opt_state):
            return params  # the job was done while the program was in a step, which counts for nothing
        if paths and self._masters is not None:
            self._keep(self._masters.follow(paths, params, self._opt_state))
        if paths and self._on_adopt is not None:
            opt_state = self._on_adopt(paths, params, self._opt_state)
            if (forms := _forms(opt_state)) != self._forms:
                raise ValueError(f"on_adopt changed the form of the optimizer's state {_difference(self._forms, forms)}")
            self._keep(opt_state)
        return params

    def _keep(self, opt_state: State) -> None:
        self._opt_state = opt_state
        if self._inner is not None:
            self._inner.opt_state = opt_state


def _is_deleted(tree: object) -> bool:
    return any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree_util.tree_leaves(tree))


def _donated(asked: str, what: str) -> LoopError:
    return LoopError(
        f"{asked} was asked for, but the program has donated {what} to a step whose result it has not given to session.step. Go on with "
        f"that result, call session.step with it, and ask for {asked} afterwards"
    )


type _Forms = tuple[object, list[tuple[object, object]]]


def _forms(tree: object) -> _Forms:
    """Return the structure of a tree, and shape and type of each leaf; of a leaf that is no array, its type."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    return structure, [(getattr(leaf, "shape", ()), getattr(leaf, "dtype", type(leaf))) for leaf in leaves]


def _difference(before: _Forms, after: _Forms) -> str:
    if before[0] != after[0]:
        return f"from {before[0]} to {after[0]}"
    return "; ".join(
        f"from {kind}{shape} to {new}{other}"
        for (shape, kind), (other, new) in zip(before[1], after[1], strict=True)
        if (shape, kind) != (other, new)
    )
