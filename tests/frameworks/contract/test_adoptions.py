"""What becomes of adopted values in a program, in all frameworks alike: one that goes on from copies of its own is told."""

from __future__ import annotations

import pytest
from builders.frameworks.adapter import Program
from builders.frameworks.registry import FRAMEWORKS
from diloco.learner.leave import LoopError
from diloco.learner.overwrite_detector import FIRST, LOST

UNDONE = r"the program undoes what it adopts: after a step parameter '.*' goes on from the values that it had before .* join\(on_adopt=…\)"


@pytest.fixture(params=[f"{name} {dtype}" for name, each in FRAMEWORKS.items() if each.program for dtype in ("float32", "bfloat16")])
def program(request: pytest.FixtureRequest) -> Program:
    name, _, dtype = request.param.partition(" ")
    make = FRAMEWORKS[name].program
    assert make is not None
    return make(dtype)


def test_a_program_that_goes_on_from_copies_of_its_own_is_told(program: Program) -> None:
    for _ in range(LOST - 1):
        program.undo(2.0)
    with pytest.raises(LoopError, match=UNDONE):
        program.undo(2.0)


def test_an_adoption_that_lasts_clears_the_count(program: Program) -> None:
    for _ in range(2):
        for _ in range(LOST - 1):
            program.undo(2.0)
        program.adopt(2.0)
        for _ in range(3):
            program.step()


def test_a_program_that_takes_over_what_is_adopted_trains_on(program: Program) -> None:
    for _ in range(2 * FIRST):
        program.adopt(2.0)
        for _ in range(3):
            program.step()


@pytest.mark.parametrize("name", [name for name, each in FRAMEWORKS.items() if each.program])
def test_a_change_that_is_as_small_as_a_step_tells_nothing(name: str) -> None:
    """A unit that is alone adopts what it has sent, and moves back by the steps in between, which it then does again."""
    make = FRAMEWORKS[name].program
    assert make is not None
    program = make("float32")
    for _ in range(4 * LOST):
        program.step()
        program.adopt_own()
        program.step()
        program.step()
