"""Units of several torch processes: what they stage, apply and fill is what one process would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders.exchange import PROGRAMS

TWO = ["ddp", "fsdp", "fsdp_by_column", "compiled_then_ddp", "fsdp_then_compiled"]
FOUR = ["ddp", "fsdp", "hsdp", "tensor_parallel", "two_dimensional"]
"""Kinds of `torch_ranks.py`, one after the other in the same processes, because to start them takes longest."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("ranks", "kinds"), [(2, TWO), (4, FOUR)])
def test_the_ranks_of_a_unit_hold_adopt_and_fill_what_one_process_would(tmp_path: Path, ranks: int, kinds: list[str]) -> None:
    program = [sys.executable, str(PROGRAMS / "torch_ranks.py")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([*program, str(rank), str(ranks), str(tmp_path), *kinds], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    try:
        # Those that wait for a rank that has failed end when its connections break.
        said = [process.communicate()[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * ranks, "\n".join(said)
