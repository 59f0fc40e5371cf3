"""`diloco launch`: the launcher of learner images, under the CLI's name."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from diloco_cli.diloco.main import main


@pytest.mark.slow
def test_launch_starts_as_many_ranks_as_asked_for_and_leaves_the_programs_options_alone() -> None:
    program = str(Path(sys.executable).parent / "diloco")
    command = [
        program,
        "launch",
        "--nproc-per-node",
        "2",
        sys.executable,
        "-c",
        "import os, sys; print(os.environ['RANK'], sys.argv[1:])",
        "-h",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, sorted(ended.stdout.splitlines())) == (0, ["[0] 0 ['-h']", "[1] 1 ['-h']"]), ended.stderr


def test_launch_refuses_a_bad_number_of_ranks() -> None:
    result = CliRunner().invoke(main, ["launch", "--nproc-per-node", "none", "train.py"])
    assert (result.exit_code, "must be a number from 1 to 1024, not 'none'" in result.output) == (2, True)
