"""Learning rates for optax that follow the job.

A schedule of optax is a function of the optimizer's own count of steps, and knows nothing of the job. So the program puts the rate into the
optimizer's state, as a value, and nothing is compiled again.

See docs/decisions/0166-progress-pauses-and-ends.md.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import DictKey, GetAttrKey

from diloco.schedules import Clock, Decay, Schedule


class ProgressRate:
    """The learning rate for the program's next step."""

    def __init__(self, session: Clock, peak: float, schedule: Schedule) -> None:
        """`peak`: the highest rate."""
        self._session = session
        self._peak = peak
        self._schedule = schedule

    def __call__(self) -> float:
        """The rate, for a program that passes it to its own compiled step."""
        return self._peak * self._schedule.next_share(self._session)

    def into[State](self, opt_state: State) -> State:
        """Return `opt_state` with this rate in every `learning_rate` of `optax.inject_hyperparams`. Raises ValueError if there is none."""
        rate, count = self(), 0

        def one(path: tuple[Any, ...], leaf: Any) -> Any:
            nonlocal count
            if path[-2:] != (GetAttrKey("hyperparams"), DictKey("learning_rate")):
                return leaf
            count += 1
            return jnp.full(jnp.shape(leaf), rate, jnp.result_type(leaf))

        replaced: State = jax.tree_util.tree_map_with_path(one, opt_state)
        if not count:
            raise ValueError(
                "the optimizer's state holds no learning rate to set; make the optimizer with "
                "optax.inject_hyperparams(optax.adamw)(learning_rate=0.0), or hand the rate to your step yourself"
            )
        return replaced


def schedule(
    session: Clock, peak: float, decay: Decay = "cosine", *, warmup: int = 0, final: float = 0.0, tail: float = 0.2
) -> ProgressRate:
    """Return a rate whose decay follows `session.progress`, so that fast, slow and late units anneal together.

    Raises ValueError for values that cannot be.

    Args:
        peak: the highest rate.
        decay: "constant", "linear", "cosine" or "wsd".
        warmup: local steps over which the rate rises from 0. They count from an optimizer state of zeros, so a unit that came back with the
            state of a peer does not warm up again.
        final: the rate at the end of the job, as a share of the highest.
        tail: for "wsd", the last share of the job, in which the rate falls.
    """
    return ProgressRate(session, peak, Schedule(decay, warmup, final, tail))
