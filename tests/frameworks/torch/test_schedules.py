"""torch's scheduler in a loop as users write it: its rates are those of the job's progress."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from diloco.torch import schedule


@dataclass
class Clock:
    progress: float = 0.0
    step_count: int = 0


def optimizer() -> torch.optim.Optimizer:
    first, second = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    return torch.optim.SGD([{"params": [first], "lr": 0.4}, {"params": [second], "lr": 0.04}], lr=0.1)


def rates(of: torch.optim.Optimizer) -> list[float]:
    return [group["lr"] for group in of.param_groups]


def test_every_group_follows_the_job_from_its_own_rate() -> None:
    clock, trained = Clock(), optimizer()
    scheduler = schedule(trained, clock, "linear", warmup=2)
    seen = [rates(trained)]
    for done in (0.25, 0.5, 1.0):
        trained.step()
        clock.step_count, clock.progress = clock.step_count + 1, done
        scheduler.step()
        seen.append(rates(trained))
    # Warm-up 1/2, 1, 1, 1 times what is left of the job: 1, 3/4, 1/2, 0.
    assert [pair[0] for pair in seen] == pytest.approx([0.2, 0.3, 0.2, 0.0])
    assert [pair[1] for pair in seen] == pytest.approx([0.02, 0.03, 0.02, 0.0])


def test_more_calls_than_steps_do_not_make_it_run_ahead() -> None:
    clock, trained = Clock(progress=0.5, step_count=10), optimizer()
    scheduler = schedule(trained, clock, "cosine")
    for _ in range(5):
        trained.step()
        scheduler.step()
    assert rates(trained) == pytest.approx([0.2, 0.02])


def test_its_state_can_be_saved_and_holds_no_session(tmp_path: object) -> None:
    clock, trained = Clock(progress=0.5), optimizer()
    scheduler = schedule(trained, clock, "linear")
    state = scheduler.state_dict()
    assert not any(value is clock for value in state.values())
    later = Clock(progress=0.75)
    again = schedule(optimizer(), later, "linear")
    again.load_state_dict(state)
    assert again.get_lr() == pytest.approx([0.1, 0.01])  # where the job is, not where the state was saved
