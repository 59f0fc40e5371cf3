"""When a reconcile must run again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diloco_operator.reconcile.context import ReconcileContext


def requeue_after(context: ReconcileContext, deadlines: Sequence[float | None]) -> float | None:
    """Return seconds to the next deadline, and no more than the interval at which every job is looked at."""
    return earliest(context.now, (*deadlines, context.now + context.observed.config.resync_interval))


def earliest(now: float, deadlines: Iterable[float | None]) -> float | None:
    """Return seconds to the next deadline, and a little more, so that a clock that ticks in milliseconds has passed it."""
    return min((max(0.0, deadline - now) + 0.001 for deadline in deadlines if deadline is not None), default=None)
