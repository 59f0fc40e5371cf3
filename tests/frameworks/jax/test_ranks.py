"""Units of several JAX processes: what they stage, apply and fill is what one process would. And a process of several devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders.exchange import PROGRAMS, Place, Processes, job_file, training
from builders.ports import held_port
from diloco.contract import ENV_LEADER_ADDRESS


@pytest.mark.slow
def test_the_processes_of_a_unit_hold_adopt_and_fill_what_one_process_would() -> None:
    """Two processes with two devices each, in a mesh of data and model."""
    port = held_port()
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAMS / "jax_ranks.py"), str(rank), "2", str(port)], env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate()[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)


@pytest.mark.full
@pytest.mark.slow
def test_processes_that_all_hold_the_whole_model_on_one_device_each_end_with_the_same_parameters(tmp_path: Path) -> None:
    processes = Processes(Place(tmp_path, job_file(training(40, sync_interval=4))))
    leader, coordinator = held_port(), held_port()
    try:
        syncer = processes.syncer()
        more = {
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "1",
            "JAX_NUM_PROCESSES": "2",
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{coordinator}",
            "WORLD_SIZE": "2",
            ENV_LEADER_ADDRESS: f"127.0.0.1:{leader}",
        }
        ranks = [
            processes._start(
                [sys.executable, str(PROGRAMS / "jax_replicated.py")],
                processes.place.of_learner(processes.address, "u", 1, JAX_PROCESS_ID=str(rank), **more),
                f"u{rank}",
            )
            for rank in range(2)
        ]
        assert [rank.wait(240) for rank in ranks] == [0, 0]
        assert syncer.wait() == 0
        assert len({rank.text.splitlines()[-1] for rank in ranks}) == 1
    finally:
        processes.end()


@pytest.mark.full
@pytest.mark.slow
def test_a_process_of_two_devices_that_donates_and_fetches_ahead_ends_with_the_bytes_of_the_other_unit(tmp_path: Path) -> None:
    processes = Processes(Place(tmp_path, job_file(training(200, sync_interval=4, quorum=2))))
    try:
        syncer = processes.syncer()
        more = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2", "UNIT_DEVICES": "2", "UNIT_AHEAD": "1"}
        command = [sys.executable, str(PROGRAMS / "unit_learner.py")]
        units = [
            processes._start([*command, kind], processes.place.of_learner(processes.address, kind, 1, **environment), kind)
            for kind, environment in (("jax", more), ("numpy", {}))
        ]
        assert [unit.wait(240) for unit in units] == [0, 0]
        assert syncer.wait() == 0
        said = [json.loads(line) for unit in units for line in unit.text.splitlines() if line.startswith('{"unit"')]
        assert {line["unit"] for line in said} == {"jax", "numpy"}
        assert len({line["digest"] for line in said}) == 1
    finally:
        processes.end()
