"""Units of several torch processes: what they stage, apply and fill is what one process would."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from builders.exchange import PROGRAMS

TWO = ["ddp", "fsdp", "fsdp_by_column", "compiled_then_ddp", "fsdp_then_compiled"]
FOUR = ["ddp", "fsdp", "hsdp", "tensor_parallel", "two_dimensional"]
"""Kinds of `torch_ranks.py`, one after the other in the same processes, because to start them takes longest."""


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "kinds"), [(2, TWO), pytest.param(4, FOUR, marks=pytest.mark.full)])
def test_the_ranks_of_a_unit_hold_adopt_and_fill_what_one_process_would(tmp_path: Path, ranks: int, kinds: list[str]) -> None:
    command = [sys.executable, str(PROGRAMS / "torch_ranks.py"), str(ranks), str(tmp_path), *kinds]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROGRAMS.parent)}
    program = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, process_group=0)
    try:
        _, said = program.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()
    assert program.returncode == 0, said
