"""What a torch program may do between an update of its optimizer and `step`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from builders.scripted_connection import ScriptedSession
from builders.training_loop import BATCH, TOKENS
from diloco.learner.inbox import Leased, PullWanted
from diloco.torch import ModuleStore
from diloco.torch.optimizers import UpdateCounts
from torch import nn


class Program:
    """A model of two parameters, which are two fragments, 5 everywhere, in a job of which two batches are leased. An update adds 1."""

    def __init__(self) -> None:
        self.model = nn.ParameterDict({"a": nn.Parameter(torch.zeros(3)), "b": nn.Parameter(torch.zeros(2))})
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.job = ScriptedSession(store=ModuleStore(self.model), updates=UpdateCounts([self.optimizer]))
        self.job.comes(self.job.welcome(), *(self.job.broadcast(p, 4, 5.0) for p in (0, 1)), Leased(0, 2 * BATCH))
        self.job.session._wait_for_parameters()
        self.batches: Iterator[list[int]] = self.job.session.batches(lambda numbers: numbers.tolist(), BATCH)

    def update(self) -> None:
        for parameter in self.model.values():
            parameter.grad = torch.full_like(parameter, -1.0)
        self.optimizer.step()

    def step(self) -> None:
        self.job.session.step(tokens=TOKENS)

    def waits_for_a_batch_with_an_update_that_no_step_has_counted(self) -> None:
        next(self.batches)
        self.update()
        self.step()
        next(self.batches)
        self.update()


def test_a_program_that_fetches_between_its_update_and_its_step_answers_a_pull_with_what_the_step_counts() -> None:
    program = Program()
    program.waits_for_a_batch_with_an_update_that_no_step_has_counted()
    program.job.comes(PullWanted(1, 0, 6), Leased(50, 54))
    assert next(program.batches) == [50, 51]
    assert not program.job.connection.pushed, "the second update is not counted yet"
    program.step()
    [(_, header, staged)] = program.job.connection.pushed
    assert (header.steps, header.tokens, header.samples_done) == (2, 2 * TOKENS, 2 * BATCH)
    assert set(staged.wait().tolist()) == {7.0}


def test_a_program_that_fetches_after_its_step_answers_a_pull_while_it_waits() -> None:
    program = Program()
    for _ in range(2):
        next(program.batches)
        program.update()
        program.step()
    program.job.comes(PullWanted(1, 0, 6), Leased(50, 54))
    next(program.batches)
    [(_, header, staged)] = program.job.connection.pushed
    assert (header.steps, set(staged.wait().tolist())) == (2, {7.0})
