"""How much tests of properties try, and how the explorers of protocols draw their runs: the same ones each time, so that what is found
once is found again."""

from __future__ import annotations

import os
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import HealthCheck, Phase, settings

ALL = os.environ.get("DILOCO_TESTS") == "all"
"""`make ci-full` sets it: every example is tried."""

XLA_FLAGS = "" if ALL else "--xla_backend_optimization_level=0"
"""For programs in JAX. To optimize what runs for a second takes longer than that: without, byte_lm_jax costs 8 s of a core instead of 16.
`make ci-full` runs what users run."""


def examples(all_of_them: int) -> int:
    """Return how many examples a test tries: a fifth elsewhere than in `make ci-full`, but five at least."""
    return all_of_them if ALL else max(5, all_of_them // 5)


def full(*values: Any) -> ParameterSet:
    """Return a set of parameters that only `make ci-full` tries."""
    return pytest.param(*values, marks=pytest.mark.full)


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
