"""How long the event loop stands still, as the watch measures it and the metrics tell it."""

from __future__ import annotations

import asyncio
import time

from diloco_operator.operator.loop_metrics import LoopMetrics
from diloco_operator.operator.loop_watch import watched_loop
from prometheus_client import CollectorRegistry


def test_a_turn_lasts_as_long_as_its_work_and_waiting_counts_for_nothing() -> None:
    turns: list[float] = []

    def compute() -> None:
        begun = time.monotonic()
        while time.monotonic() - begun < 0.05:
            pass

    async def work() -> None:
        await asyncio.sleep(0)
        turns.clear()
        compute()
        await asyncio.sleep(0.2)

    begun = time.monotonic()
    with asyncio.Runner(loop_factory=lambda: watched_loop(turns.append)) as runner:
        runner.run(work())
    assert max(turns) >= 0.05
    assert sum(turns) <= time.monotonic() - begun - 0.2


def test_metrics_have_every_hold_and_the_longest_one() -> None:
    registry = CollectorRegistry()
    metrics = LoopMetrics(registry)
    for seconds in (0.005, 0.02, 0.5, 0.3):  # the first is too short to count
        metrics.turn_ended(seconds)
    assert registry.get_sample_value("diloco_operator_event_loop_hold_seconds_count") == 3
    assert registry.get_sample_value("diloco_operator_event_loop_hold_seconds_bucket", {"le": "0.25"}) == 1
    assert registry.get_sample_value("diloco_operator_event_loop_longest_hold_seconds") == 0.5
