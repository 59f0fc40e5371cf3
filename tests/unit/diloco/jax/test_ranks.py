"""Units of several JAX processes: what they stage, apply and fill is what one process would."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
from builders.exchange import PROGRAMS


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_processes_of_a_unit_hold_adopt_and_fill_what_one_process_would() -> None:
    """Two processes with two devices each, in a mesh of data and model."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
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
