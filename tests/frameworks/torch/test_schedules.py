"""torch's scheduler in a loop as users write it: its rates are those of the job's progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from builders.frameworks.adapter import Clock
from diloco.torch import schedule
from diloco.torch.hf import TrainerShape
from transformers import TrainingArguments, get_scheduler


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
        clock.optimizer_steps, clock.progress = clock.optimizer_steps + 1, done
        scheduler.step()
        seen.append(rates(trained))
    # Warm-up 1/2, 1, 1, 1 times what is left of the job: 1, 3/4, 1/2, 0.
    assert [pair[0] for pair in seen] == pytest.approx([0.2, 0.3, 0.2, 0.0])
    assert [pair[1] for pair in seen] == pytest.approx([0.02, 0.03, 0.02, 0.0])


def test_more_calls_than_steps_do_not_make_it_run_ahead() -> None:
    clock, trained = Clock(progress=0.5, optimizer_steps=10), optimizer()
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


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("linear", {}),
        ("cosine", {}),
        ("cosine_with_restarts", {"num_cycles": 2}),
        ("cosine_with_min_lr", {"min_lr_rate": 0.1}),
        ("polynomial", {"power": 2.0}),
        ("warmup_stable_decay", {"num_decay_steps": 30}),
        ("inverse_sqrt", {}),
        ("constant", {}),
    ],
)
def test_the_shapes_of_the_trainer_are_those_of_transformers_over_the_job(tmp_path: Path, kind: str, more: dict[str, Any]) -> None:
    steps, warmup = 100, 0 if kind == "constant" else 10
    args = TrainingArguments(output_dir=str(tmp_path), lr_scheduler_type=kind, warmup_steps=warmup, lr_scheduler_kwargs=more)
    shape = TrainerShape(args, torch.optim.SGD([torch.zeros(1)], lr=0.5), steps)
    alone = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    reference = get_scheduler(kind, alone, warmup, warmup + steps, more)
    clock = Clock()
    for step in range(warmup + steps):
        # A unit whose updates after its warm-up are the job's outer steps.
        clock.optimizer_steps, clock.progress = step, max(0, step - warmup) / steps
        assert 0.5 * shape.next_share(clock) == pytest.approx(alone.param_groups[0]["lr"], abs=1e-12)
        alone.step()
        reference.step()


@pytest.mark.parametrize(("kind", "more"), [("cosine_with_min_lr", {"min_lr": 0.05}), ("polynomial", {"lr_end": 0.01})])
def test_the_trainers_shape_is_that_of_the_highest_rate_in_a_unit_with_the_state_of_a_peer(
    tmp_path: Path, kind: str, more: dict[str, Any]
) -> None:
    args = TrainingArguments(output_dir=str(tmp_path), lr_scheduler_type=kind, warmup_steps=10, lr_scheduler_kwargs=more)
    fresh, came_back = (torch.optim.SGD([torch.zeros(1)], lr=0.5) for _ in range(2))
    came_back.param_groups[0].update(initial_lr=0.5, lr=0.2)
    clock = Clock(progress=0.75, optimizer_steps=1000)
    assert TrainerShape(args, came_back, 100).next_share(clock) == TrainerShape(args, fresh, 100).next_share(clock)


def test_the_trainers_shape_ends_with_the_job_and_not_with_the_units_steps(tmp_path: Path) -> None:
    args = TrainingArguments(output_dir=str(tmp_path), lr_scheduler_type="linear", warmup_steps=0.05)
    shape = TrainerShape(args, optimizer(), 100)
    # A fast unit, long past the job's 100 steps, when half of the job is done; one that came late, in its first of 5 steps of warm-up.
    assert shape.next_share(Clock(progress=0.5, optimizer_steps=1000)) == pytest.approx(0.5)
    assert shape.next_share(Clock(progress=0.5, optimizer_steps=1)) == pytest.approx(0.5 / 5)
    assert shape.next_share(Clock(progress=1.0, optimizer_steps=1000)) == 0.0
