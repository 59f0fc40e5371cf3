"""What /metrics reports about the event loop: how long it stands still.

See docs/decisions/0091-fairness-on-one-loop.md.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, Histogram

_SHORTEST = 0.01
"""Seconds. Shorter turns of the loop are not counted: there are thousands in a second."""
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class LoopMetrics:
    """A `watched_loop` calls `turn_ended`, in the loop's thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._holds = Histogram(
            "diloco_operator_event_loop_hold_seconds",
            "Seconds for which the event loop stood still, if 0.01 or more",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._longest = Gauge(
            "diloco_operator_event_loop_longest_hold_seconds",
            "The longest time for which the event loop stood still, since the process started",
            registry=registry,
        )
        self._most = 0.0

    def turn_ended(self, seconds: float) -> None:
        if seconds < _SHORTEST:
            return
        self._holds.observe(seconds)
        if seconds > self._most:
            self._most = seconds
            self._longest.set(seconds)
