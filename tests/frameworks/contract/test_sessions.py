"""What a session is to a training program, in all frameworks alike: when parameters come and go, and what is counted."""

from __future__ import annotations

import inspect

import pytest
from builders.frameworks.adapter import Joined
from builders.frameworks.registry import FRAMEWORKS
from builders.training_loop import BATCH, TOKENS
from diloco import jax
from diloco.learner.inbox import Finished, PullWanted
from diloco.session.session import Session


@pytest.fixture(params=[name for name, each in FRAMEWORKS.items() if each.joined])
def program(request: pytest.FixtureRequest) -> Joined:
    make = FRAMEWORKS[request.param].joined
    assert make is not None
    return make()


def test_a_program_begins_with_the_jobs_parameters(program: Joined) -> None:
    assert program.values() == ({5.0}, {5.0})
    assert (program.session.t, program.session.steps, program.session.step_count) == (4, 1000, 0)


def test_a_step_counts_and_brings_what_has_come(program: Joined) -> None:
    program.job.comes(program.job.broadcast(0, 8, 9.0))
    program.step()
    assert program.values() == ({9.0}, {6.0}), "the step that adds 1 comes first"
    program.step()
    assert program.values() == ({10.0}, {7.0})
    progress = program.job.progress
    assert (progress.local_step, list(progress.tokens), progress.samples_done) == (2, [TOKENS, 2 * TOKENS], 2 * BATCH)
    assert (program.session.t, program.session.step_count) == (8, 2)


def test_a_pull_is_answered_with_what_the_step_made_whatever_follows(program: Joined) -> None:
    program.step()
    program.job.comes(PullWanted(1, 0, 6))
    program.step()
    program.step()
    [(_, header, staged)] = program.job.connection.pushed
    assert (header.steps, header.tokens) == (2, 2 * TOKENS)
    assert set(staged.wait().tolist()) == {7.0}


def test_a_model_seeds_a_job_without_parameters(program: Joined) -> None:
    program.job.connection.values.clear()
    program.job.comes(program.job.welcome(generation=2, t=0, seed_wanted=True))
    program.step()
    [(generation, values)] = program.job.connection.seeded
    assert (generation, [set(value.tolist()) for value in values]) == (2, [{6.0}, {6.0}])


def test_the_end_of_the_job_leaves_the_final_parameters_and_nothing_changes_them(program: Joined) -> None:
    program.step()
    program.job.comes(program.job.broadcast(0, 1000, 7.0), program.job.broadcast(1, 1000, 8.0), Finished(1000))
    program.step()
    assert (program.session.done, program.session.over, program.session.progress) == (True, True, 1.0)
    assert program.values() == ({7.0}, {8.0})
    told = len(program.job.connection.reported)
    program.step_without_a_batch()
    assert program.values() == ({7.0}, {8.0}), "a step of a job that is done is put back"
    assert len(program.job.connection.reported) == told
    program.session.evaluate(0.5, 32)
    program.session.close()
    assert [(one.held_out_loss, one.tokens, one.t) for one in program.job.connection.evaluations] == [(0.5, 32, 1000)]
    [bye] = program.job.connection.closed
    assert bye is not None
    assert (bye.drained, bye.left) == (False, False)


def test_a_program_that_raises_leaves_without_bye(program: Joined) -> None:
    with pytest.raises(ZeroDivisionError), program.session:
        raise ZeroDivisionError
    assert program.job.connection.closed == [None]


def test_what_a_program_says_beside_its_steps_is_told(program: Joined) -> None:
    with program.session.paused("evaluation", at_most=600):
        assert program.job.connection.pauses == [("evaluation", 600)]
    program.session.finish("loss below 2.0")
    assert program.job.connection.pauses[1] == ("", 0.0)
    assert program.job.connection.finishes == ["loss below 2.0"]


def test_the_sessions_of_all_frameworks_have_the_same_calls() -> None:
    def calls(of: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters) if inspect.isfunction(member) else []
            for name, member in inspect.getmembers(of)
            if not name.startswith("_")
        }

    driver, in_jax = calls(Session), calls(jax.Session)
    assert driver.keys() <= in_jax.keys()
    assert in_jax.keys() - driver.keys() == {"params", "opt_state"}, "of a program whose parameters are a value"
    assert in_jax.pop("step") == ["self", "params", "opt_state", *driver.pop("step")[1:]]
    assert {name: driver[name] for name in driver.keys() & in_jax.keys()} == {name: in_jax[name] for name in driver.keys() & in_jax.keys()}
