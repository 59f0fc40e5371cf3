"""What the ends of steps say of a moment."""

from __future__ import annotations

from benchmarks.process_rig import durations, durations_before, longest_after

STEPS = [0.0, 1.0, 2.0, 3.0, 8.0, 9.0]
"""The one that ends at 8 takes 5 s."""


def test_the_step_in_which_a_moment_falls_counts_as_after_it_only() -> None:
    assert durations(STEPS, 3.5, 9.0) == [5.0, 1.0]
    assert durations_before(STEPS, 0.0, 3.5) == [1.0, 1.0, 1.0]


def test_a_delay_of_the_step_in_which_a_learner_is_killed_is_seen() -> None:
    assert longest_after(STEPS, 0.0, 3.5, 9.0) == 5.0
