"""The session of a JAX program: `step` takes parameters and optimizer state, and returns those to go on with.

See docs/decisions/0151-step-boundary.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import jax

from diloco.jax.inner_state import TreeState, is_deleted
from diloco.jax.masters import Masters
from diloco.jax.store import TreeStore
from diloco.learner.leave import LoopError
from diloco.session.session import JobSession, SessionParts


class TreeSession[Tree, State](ABC):
    """The part of a session that hands a pytree of parameters to the program and takes it back. For the main thread only."""

    def __init__(
        self,
        store: TreeStore[Tree],
        state: TreeState[State],
        masters: Masters | None,
        on_adopt: Callable[[Sequence[str], Tree, State], State] | None,
    ) -> None:
        """`state`: the optimizer's. `masters`: the masters in it, which follow adoptions; None if there are none."""
        self._store = store
        self._state = state
        self._forms = _forms(state.opt_state)
        self._masters = masters
        self._on_adopt = on_adopt
        self._loss: jax.Array | None = None

    @abstractmethod
    def _count_step(self, tokens: int, loss: float | None, batches: int) -> None:
        """See `JobSession`, which counts the step and adopts what has come."""

    @property
    def params(self) -> Tree:
        """The current parameters: after `join` the job's, after `step` those that it returned, and once `done` the final ones. Raises
        LoopError if the program has donated them to a step and not given the result to `session.step`."""
        self._hand_out_once()
        params = self._store.held()
        if is_deleted(params):  # at the end of the job too: the store cannot restore frozen leaves that the program has donated
            raise _donated("session.params", "the parameters")
        return params

    @property
    def opt_state(self) -> State:
        """The optimizer's state that belongs to `params`. Raises LoopError if the program has donated it."""
        self._hand_out_once()
        if is_deleted(self._state.opt_state):
            raise _donated("session.opt_state", "the optimizer's state")
        return self._state.opt_state

    def step(
        self, params: Tree, opt_state: State, *, tokens: int, loss: float | jax.Array | None = None, batches: int = 1
    ) -> tuple[Tree, State]:
        """Call this after every update of the optimizer, and train on with the parameters and the state that it returns. Once the job is
        done, these are the final parameters.

        Never waits for the network. Raises LoopError if the numbers cannot be true, and ValueError if `params` or `opt_state` changed
        structure, shape or type.

        Args:
            params: the updated parameters.
            opt_state: the optimizer's state after the update.
            tokens: real tokens of this process's batches of the update, without padding. An array that is spread over the processes of the
                unit has the tokens of all of them.
            loss: loss of the update, if it is cheap to have. An array is reported one step later, so that the host does not wait for it and
                is at most one step ahead of the device.
            batches: how many of the session's batches the update used. They are settled, the oldest first.
        """
        if (forms := _forms(opt_state)) != self._forms:
            raise ValueError(f"the optimizer's state changed its form {_difference(self._forms, forms)}")
        if is_deleted(opt_state):
            raise LoopError("the optimizer's state was donated to a step. Give session.step what that step returned")
        self._store.take_back(params)
        if self._masters is not None:
            self._masters.look_again(params, opt_state)
        self._state.opt_state = opt_state
        ready: float | None = None
        if isinstance(loss, jax.Array):
            ready, self._loss = (None if self._loss is None else float(self._loss)), loss
        elif loss is not None:
            ready = float(loss)
        self._count_step(tokens, ready, batches)
        return self._hand_out(), self._state.opt_state

    def _hand_out_once(self) -> None:
        """Hand the tree out, unless the program holds it. What is adopted while it does is handed out by its next `step`."""
        if not self._store.handed_out:
            self._hand_out()

    def _hand_out(self) -> Tree:
        paths = self._store.applied_paths()
        params = self._store.hand_out()
        if is_deleted(self._state.opt_state):
            return params  # the job was done while the program was in a step, which counts for nothing
        if paths and self._masters is not None:
            self._state.opt_state = self._masters.follow(paths, params, self._state.opt_state)
        if paths and self._on_adopt is not None:
            opt_state = self._on_adopt(paths, params, self._state.opt_state)
            if (forms := _forms(opt_state)) != self._forms:
                raise ValueError(f"on_adopt changed the form of the optimizer's state {_difference(self._forms, forms)}")
            self._state.opt_state = opt_state
        return params


class Session[Tree, State](JobSession, TreeSession[Tree, State]):
    """One learner unit's membership in a job."""

    def __init__(
        self,
        parts: SessionParts,
        store: TreeStore[Tree],
        state: TreeState[State],
        masters: Masters | None = None,
        on_adopt: Callable[[Sequence[str], Tree, State], State] | None = None,
    ) -> None:
        """Call `diloco.jax.join` instead."""
        JobSession.__init__(self, parts)
        TreeSession.__init__(self, store, state, masters, on_adopt)


def _donated(asked: str, what: str) -> LoopError:
    return LoopError(
        f"{asked} was asked for, but the program has donated {what} to a step whose result it has not given to session.step. Go on with "
        f"that result, call session.step with it, and ask for {asked} afterwards"
    )


type _Forms = tuple[object, list[tuple[object, object]]]


def _forms(tree: object) -> _Forms:
    """The structure of a tree, and shape and type of each leaf. A leaf that is no array has shape () and its Python type."""
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
