"""What a JAX program may do between two calls of `step`: donate its parameters, fetch batches, and ask for the parameters again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders.scripted_connection import ScriptedSession
from builders.training_loop import BATCH, TOKENS
from diloco.canonical import Canonical
from diloco.jax import Session, TreeStore
from diloco.jax.inner_state import TreeState
from diloco.jax.masters import Masters
from diloco.learner.inbox import Finished, Leased, PullWanted
from diloco.learner.leave import LoopError

type Params = dict[str, jax.Array]

STACKED = {"layers": Canonical("layer.{layer}", stacked=True)}
STEP = 1.0
"""What a step adds to each element."""


@partial(jax.jit, donate_argnums=(0, 1))
def donating(params: Params, state: Params) -> tuple[Params, Params]:
    moved = {name: leaf + jnp.asarray(STEP, leaf.dtype) for name, leaf in params.items()}
    return moved, {name: leaf + STEP for name, leaf in state.items()}


class Program:
    """A model of two stacked layers and a vector, which are three tensors in two fragments, in a job of 100 leased samples. Its state
    holds a float32 master of each parameter."""

    def __init__(self, dtype: Any = jnp.float32, leased: int = 2 * BATCH, *, seeds: bool = False) -> None:
        """`seeds`: the job begins with this program's own parameters; default: with 5 everywhere."""
        params = {"layers": jnp.ones((2, 3), dtype), "vector": jnp.ones(4, dtype)}
        state = {name: jnp.array(leaf, jnp.float32) for name, leaf in params.items()}  # copies: both are donated
        state["seen"] = jnp.zeros(())
        self.store = TreeStore(params, canonical=STACKED)
        self.job = ScriptedSession(store=self.store)
        self.told: list[list[str]] = []
        inner, masters = TreeState(self.store, state), Masters(params, state)
        self.session: Session[Params, Params] = self.job.begin(Session(self.job.parts, self.store, inner, masters, self._on_adopt))
        first = () if seeds else (self.job.broadcast(p, 4, 5.0) for p in (0, 1))
        self.job.comes(self.job.welcome(seed_wanted=seeds), *first, Leased(0, leased))
        self.session._wait_for_parameters()
        self.batches: Iterator[list[int]] = self.session.batches(lambda numbers: numbers.tolist(), BATCH)
        self.params, self.state = self.session.params, self.session.opt_state

    def _on_adopt(self, paths: Sequence[str], params: Params, state: Params) -> Params:
        self.told.append(sorted(paths))
        return state

    def train(self) -> None:
        """A step of the optimizer, which `step` does not know of yet."""
        self.params, self.state = donating(self.params, self.state)

    def step(self) -> None:
        self.params, self.state = self.session.step(self.params, self.state, tokens=TOKENS)

    def in_fragment(self, fragment: int) -> set[str]:
        return {tensor.name for tensor in self.job.fragments[fragment].tensors}

    def values(self, tree: Params | None = None) -> dict[str, float]:
        """Return the value of each tensor, which is the same number everywhere."""
        tree = self.params if tree is None else tree
        parts = {"layer.0": tree["layers"][0], "layer.1": tree["layers"][1], "vector": tree["vector"]}
        found = {name: np.unique(np.asarray(part, np.float32)) for name, part in parts.items()}
        assert all(len(value) == 1 for value in found.values())
        return {name: float(value[0]) for name, value in found.items()}


def waits_with_donated_parameters(program: Program) -> None:
    """It takes its last batch, donates its parameters to a step, and asks for one more batch: that is not leased yet."""
    next(program.batches)
    program.step()
    next(program.batches)
    program.train()


def test_a_program_that_donates_and_fetches_ahead_answers_a_pull_after_its_step_and_adopts_then() -> None:
    program = Program()
    waits_with_donated_parameters(program)
    program.job.comes(PullWanted(1, 0, 6), program.job.broadcast(1, 6, 9.0), Leased(50, 54))
    assert next(program.batches) == [50, 51]
    assert not program.job.connection.pushed, "what the counters say is not there any more"
    program.step()
    # Before the step 5; the program did one step.
    assert program.values() == {name: 6.0 if name in program.in_fragment(0) else 9.0 for name in program.values()}
    [(_, header, staged)] = program.job.connection.pushed
    assert (header.steps, header.tokens, header.samples_done) == (2, 2 * TOKENS, 2 * BATCH)
    assert set(staged.wait().tolist()) == {6.0}


def test_a_job_that_begins_anew_gets_its_first_parameters_once_the_step_that_they_were_donated_to_is_done() -> None:
    program = Program(seeds=True)
    waits_with_donated_parameters(program)
    program.job.comes(program.job.welcome(generation=2, t=0, seed_wanted=True), Leased(0, 4))
    next(program.batches)
    assert len(program.job.connection.seeded) == 1
    program.step()
    (_, first), (generation, second) = program.job.connection.seeded
    assert [set(values.tolist()) for values in first] == [{1.0}, {1.0}]
    assert (generation, [set(values.tolist()) for values in second]) == (2, [{2.0}, {2.0}]), "1, and one update"


def test_the_end_of_the_job_gives_the_final_parameters_to_a_program_that_has_donated_its_own() -> None:
    program = Program(jnp.bfloat16)
    waits_with_donated_parameters(program)
    program.job.comes(program.job.broadcast(0, 9, 7.0), program.job.broadcast(1, 9, 8.0), Finished(10))
    with pytest.raises(StopIteration):
        next(program.batches)
    final = {name: 7.0 if name in program.in_fragment(0) else 8.0 for name in program.values()}
    assert program.values(program.session.params) == final
    with pytest.raises(LoopError, match=r"session\.opt_state was asked for, but the program has donated the optimizer's state"):
        _ = program.session.opt_state
    program.step()  # it trained on: the step counts for nothing
    assert program.values() == final
    program.session.close()


def test_a_program_that_donates_the_final_parameters_or_averages_them_ends_well() -> None:
    program = Program()
    waits_with_donated_parameters(program)
    program.job.comes(program.job.broadcast(0, 9, 7.0), program.job.broadcast(1, 9, 8.0), Finished(10))
    with pytest.raises(StopIteration):
        next(program.batches)
    program.step()
    average = jax.tree.map(lambda value: value / 2, program.session.params)
    program.session.step(average, program.state, tokens=1)
    assert set(program.values(program.session.params).values()) == {7.0, 8.0}, "the job's final parameters are put back"
    for value in program.session.params.values():
        value.delete()  # as a step that follows the job does
    program.session.close()


def test_what_is_frozen_and_donated_is_the_programs_alone() -> None:
    store = TreeStore({"adapter": jnp.ones(3), "scale": jnp.ones(1), "base": jnp.ones(2)}, trained=lambda path: path != "base")
    session: Session[Params, tuple[()]] = Session(ScriptedSession(store=store).parts, store, TreeState(store, ()))
    held = session.params
    held["base"].delete()
    store.reclaim()  # as at the end of the job
    with pytest.raises(LoopError, match="Go on with that result"):
        _ = session.params


def test_parameters_that_are_donated_cannot_be_asked_for_and_the_error_says_what_to_do() -> None:
    program = Program()
    next(program.batches)
    program.train()
    with pytest.raises(LoopError, match=r"donated the parameters to a step .* Go on with that result, call session\.step with it"):
        _ = program.session.params
    with pytest.raises(LoopError, match="donated the optimizer's state"):
        _ = program.session.opt_state
    program.step()
    assert program.values(program.session.params) == dict.fromkeys(program.values(), 6.0)


def test_a_step_is_not_given_what_was_donated_to_it() -> None:
    program = Program()
    next(program.batches)
    params, state = donating(program.params, program.state)
    with pytest.raises(LoopError, match=r"parameter 'layers' was donated to a step\. Give session\.step what that step returned"):
        program.session.step(program.params, state, tokens=TOKENS)
    with pytest.raises(LoopError, match="the optimizer's state was donated to a step"):
        program.session.step(params, program.state, tokens=TOKENS)
    program.session.step(params, state, tokens=TOKENS)


@pytest.mark.parametrize("goes_on_with_what_it_read", [False, True])
def test_parameters_that_are_read_within_a_loop_are_those_of_the_last_step_and_nothing_adopted_is_lost(
    goes_on_with_what_it_read: bool,
) -> None:
    program = Program()
    for _ in range(2):
        next(program.batches)
        program.train()
        program.step()
    program.job.comes(program.job.broadcast(1, 6, 9.0), Leased(50, 54))
    next(program.batches)  # version 6 comes while it waits
    read = program.session.params
    assert program.values(read) == dict.fromkeys(program.values(), 7.0), "what the last step returned"
    if goes_on_with_what_it_read:
        program.params = read
    program.train()
    program.step()
    assert program.values() == {name: 8.0 if name in program.in_fragment(0) else 9.0 for name in program.values()}
    next(program.batches)
    program.train()
    program.step()
    assert program.values() == {name: 9.0 if name in program.in_fragment(0) else 10.0 for name in program.values()}


def test_masters_and_a_callback_follow_what_came_while_the_program_waited() -> None:
    program = Program(jnp.bfloat16)
    waits_with_donated_parameters(program)
    program.told.clear()
    program.job.comes(program.job.broadcast(0, 6, 9.0), program.job.broadcast(1, 6, 9.0), Leased(50, 54))
    next(program.batches)
    program.step()
    assert program.values() == program.values(program.state) == dict.fromkeys(program.values(), 9.0)
    assert program.told == [["layers", "vector"]]


def test_a_pause_between_donation_and_step_changes_nothing() -> None:
    program = Program()
    next(program.batches)
    program.train()
    program.job.comes(PullWanted(1, 0, 6), program.job.broadcast(1, 6, 9.0))
    with program.session.paused("evaluation", at_most=60):
        program.session.evaluate(1.0, 10)  # a boundary
    program.step()
    assert program.values() == {name: 6.0 if name in program.in_fragment(0) else 9.0 for name in program.values()}
    [(_, header, staged)] = program.job.connection.pushed
    assert (header.steps, set(staged.wait().tolist())) == (1, {6.0})


def test_what_is_donated_is_made_anew_where_it_was() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    spec: Any = jax.sharding.PartitionSpec
    sharding = jax.sharding.NamedSharding(mesh, spec(None, "x"))
    leaf = jax.device_put(jnp.zeros((2, 2 * len(jax.devices())), jnp.bfloat16), sharding)
    store = TreeStore({"layers": leaf}, canonical=STACKED)
    store.hand_out()
    leaf.delete()
    assert store.lent
    store.reclaim()
    assert not store.lent
    store.write({name: np.full(leaf.shape[1:], 3.0, np.float32) for name in ("layer.0", "layer.1")})
    [after] = store.hand_out().values()
    assert (after.sharding, after.dtype, np.unique(after).tolist()) == (sharding, jnp.bfloat16, [3.0])
