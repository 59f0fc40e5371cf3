"""What becomes of the values that a JAX program adopts, beside what the contract of all frameworks says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diloco.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders.exchange import PROGRAMS, LocalSyncer, Place, Processes, job_file, training
from builders.frameworks.on_jax import STEP, JaxProgram
from diloco.contract import Exit
from diloco.learner.leave import LoopError
from diloco.learner.overwrite_detector import LOST
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def test_a_program_whose_leaves_are_spread_over_devices_is_told() -> None:
    mesh = Mesh(np.array(jax.devices()), ("x",))
    spec: Any = PartitionSpec
    program = JaxProgram("float32", lambda leaf: jax.device_put(leaf, NamedSharding(mesh, spec(None, "x"))))
    for _ in range(LOST - 1):
        program.undo(2.0)
    with pytest.raises(LoopError, match="parameter 'layers' goes on from the values"):
        program.undo(2.0)


def test_what_comes_while_the_program_holds_its_parameters_is_looked_at_when_it_gives_them_back() -> None:
    """It waits for a batch, say. The parameters may be donated to a step that is under way."""
    program = JaxProgram("float32")
    own = [{**program.params, "bias": program.params["bias"] + STEP * count} for count in (1, 2, 3)]
    program.params["bias"].delete()
    program.store.write({"bias": np.full(4, 2.0, np.float32)})
    program.step(own[0])
    assert np.allclose(program.params["bias"], 2.0), "it is put over what the program gave back"

    def keep_own() -> None:
        for _ in range(LOST):
            program.step(own[1])
            program.step(own[2])
            program.step()
            program.store.write({"bias": np.full(4, 2.0, np.float32)})
            program.step(own[0])

    with pytest.raises(LoopError, match="parameter 'bias' goes on from the values"):
        keep_own()


def test_a_model_with_a_parameter_that_is_one_number_joins_and_trains(tmp_path: Path) -> None:
    place = Place(tmp_path, job_file(training(12, fragments=2)))
    with LocalSyncer(place) as syncer:
        params = {"scale": jnp.ones(()), "weight": jnp.ones(3)}
        with diloco.jax.join(params, (), environment=place.of_learner(syncer.address, "a")) as session:
            params, state = session.params, session.opt_state
            for batch in session.batches(lambda numbers: np.ones(len(numbers)), 2):
                params = {name: leaf * 0.99 for name, leaf in params.items()}
                params, state = session.step(params, state, tokens=batch.size)
        assert session.done


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
