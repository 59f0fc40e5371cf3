"""What becomes of the values that a JAX program adopts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders.exchange import PROGRAMS, Place, Processes, job_file, training
from diloco.canonical import Canonical
from diloco.contract import Exit
from diloco.jax import TreeStore
from diloco.learner.loop_check import LoopError
from diloco.learner.overwrite_detector import FIRST, LOST
from jax.sharding import Mesh, NamedSharding, PartitionSpec

type Params = dict[str, jax.Array]

STEP = 0.01
"""What a step of the program moves each element by."""
UNDONE = r"the program undoes what it adopts: after a step parameter 'layers' goes on from the values .* join\(on_adopt=…\)"


class Watched:
    """A model of two stacked layers and a bias, and a job that overwrites its layers."""

    def __init__(self, dtype: Any, place: Callable[[jax.Array], jax.Array] = lambda leaf: leaf) -> None:
        params = {"layers": place(jnp.ones((2, 16, 16), dtype)), "bias": jnp.zeros(4, dtype)}
        self.store = TreeStore(params, canonical={"layers": Canonical("layer.{layer}", stacked=True)})
        self.store.watch()
        self.params: Params = self.store.hand_out()

    def step(self, of: Params | None = None) -> None:
        """`of`: what the program goes on from, in place of what it was handed out last."""
        moved = {name: leaf + jnp.asarray(STEP, leaf.dtype) for name, leaf in (of or self.params).items()}
        self.give_back(moved)

    def give_back(self, params: Params) -> None:
        assert self.store.adoptions is not None
        for sample in self.store.adoptions._done:
            for values in sample.values:
                values.block_until_ready()  # in a program it is looked at a step later, if need be
        self.store.take_back(params)
        self.params = self.store.hand_out()

    def adopt(self, change: float) -> Params:
        """One layer moves by `change` at the end of a step. Returns what the program had."""
        params = self.params
        self.store.take_back(params)
        value = self.store.read(["layer.1"])["layer.1"] + np.float32(change)
        self.store.write({"layer.1": value})
        self.params = self.store.hand_out()
        return params


def undoes(job: Watched, times: int) -> None:
    """The program goes on from what it had before each adoption."""
    for _ in range(times):
        own = job.adopt(2.0)
        job.step(own)
        job.step()
        job.step()  # what the second step gave is looked at


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_a_program_that_goes_on_from_a_copy_is_told(dtype: Any) -> None:
    job = Watched(dtype)
    undoes(job, LOST - 1)
    with pytest.raises(LoopError, match=UNDONE):
        undoes(job, 1)


def test_an_adoption_that_lasts_clears_the_count() -> None:
    job = Watched(jnp.float32)
    undoes(job, LOST - 1)
    job.adopt(2.0)
    for _ in range(3):
        job.step()
    undoes(job, LOST - 1)


def test_a_program_whose_leaves_are_spread_over_devices_is_told() -> None:
    mesh = Mesh(np.array(jax.devices()), ("x",))
    spec: Any = PartitionSpec
    job = Watched(jnp.float32, lambda leaf: jax.device_put(leaf, NamedSharding(mesh, spec(None, "x"))))
    with pytest.raises(LoopError, match=UNDONE):
        undoes(job, LOST)


def test_a_program_that_takes_over_what_is_adopted_trains_on() -> None:
    job = Watched(jnp.bfloat16)
    for _ in range(2 * FIRST):
        job.adopt(2.0)
        for _ in range(3):
            job.step()


def test_a_change_that_is_as_small_as_a_step_tells_nothing() -> None:
    """A unit that is alone adopts what it has sent, and moves back by the steps in between, which it then does again."""
    job = Watched(jnp.float32)
    for _ in range(4 * LOST):
        job.step()
        job.step(job.adopt(-STEP))
        job.step()
        job.step()


def test_what_comes_while_the_program_holds_its_parameters_is_looked_at_when_it_gives_them_back() -> None:
    """It waits for a batch, say. The parameters may be donated to a step that is under way."""
    job = Watched(jnp.float32)
    own = [{**job.params, "bias": job.params["bias"] + STEP * count} for count in (1, 2, 3)]
    job.params["bias"].delete()
    job.store.write({"bias": np.full(4, 2.0, np.float32)})
    job.step(own[0])
    assert np.allclose(job.params["bias"], 2.0), "it is put over what the program gave back"

    def keep_own() -> None:
        for _ in range(LOST):
            job.step(own[1])
            job.step(own[2])
            job.step()
            job.store.write({"bias": np.full(4, 2.0, np.float32)})
            job.step(own[0])

    with pytest.raises(LoopError, match="parameter 'bias' goes on from the values"):
        keep_own()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(Place(tmp_path, job_file(training(100_000, sync_interval=4))))
    yield processes
    processes.end()


@pytest.mark.slow
def test_a_unit_of_a_job_whose_program_keeps_its_parameters_ends_with_the_reason(job: Processes) -> None:
    job.syncer()
    command = [sys.executable, str(PROGRAMS / "unit_learner.py")]
    job._start([*command, "numpy"], job.place.of_learner(job.address, "other", 1), "other")
    unit = job._start([*command, "jax"], job.place.of_learner(job.address, "u", 1, UNIT_KEEPS="1"), "u")
    assert unit.wait(240) == Exit.CRASHED
    assert "LoopError: the program undoes what it adopts: after a step parameter" in unit.text
