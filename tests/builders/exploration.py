"""How the explorers of protocols draw their runs: the same ones each time, so that what is found once is found again."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings


def exploration(*, runs: int, events: int) -> settings:
    """Draw so many runs of at most so many events. A run that fails is shown as drawn: shrinking one takes longer than all others."""
    return settings(
        max_examples=runs,
        stateful_step_count=events,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def until_found(*, events: int) -> settings:
    """Draw runs of a job with a defect; the first that finds it is the last one."""
    return exploration(runs=1000, events=events)
