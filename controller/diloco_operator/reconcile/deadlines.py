"""When a reconcile must run again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diloco_operator.reconcile.context import ReconcileContext


def requeue_after(context: ReconcileContext, deadlines: Sequence[float | None]) -> float | None:
    """Return the seconds to the next deadline, at most `resync_interval`, after which every job is reconciled again."""
    return earliest(context.now, (*deadlines, context.now + context.observed.config.resync_interval))


def earliest(now: float, deadlines: Iterable[float | None]) -> float | None:
    """Return the seconds to the next deadline. None if there is none. A millisecond is added, so that a clock that ticks in milliseconds
    has passed the deadline."""
    return min((max(0.0, deadline - now) + 0.001 for deadline in deadlines if deadline is not None), default=None)
