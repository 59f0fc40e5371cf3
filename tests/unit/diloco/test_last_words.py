"""What the processes of a pod leave as its termination message."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from diloco import contract
from diloco.contract import Exit, LastWords, parse_last_words
from diloco.error_line import error_line
from diloco.last_words import has_last_words, leave_last_words


@pytest.fixture
def message(tmp_path: Path) -> Path:
    file = tmp_path / "termination-log"
    file.write_text("")
    return file


def of_rank(message: Path, rank: int) -> Mapping[str, str]:
    return {contract.ENV_TERMINATION_LOG: str(message), contract.ENV_UNIT: "h100-0", "RANK": str(rank), "WORLD_SIZE": "4"}


def test_words_survive_the_way_to_the_operator(message: Path) -> None:
    leave_last_words(of_rank(message, 3), Exit.REFUSED_LAYOUT, "tensor a:\n  other shape")
    assert message.read_text() == "diloco: exit 65, rank 3: tensor a: other shape\n"
    assert parse_last_words(message.read_text().strip()) == LastWords(65, 3, "tensor a: other shape")


def test_the_first_cause_stays_whoever_ends_after_it(message: Path) -> None:
    leave_last_words(of_rank(message, 1), Exit.RANK_LOST, "rank 2 was lost")
    assert not has_last_words(of_rank(message, 1))
    leave_last_words(of_rank(message, 3), Exit.RANK_LOST, "rank 2 was lost")
    leave_last_words(of_rank(message, 2), Exit.CRASHED, "ValueError: bad batch")
    assert has_last_words(of_rank(message, 1))
    leave_last_words(of_rank(message, 0), Exit.CRASHED, "RuntimeError: connection closed by peer")
    assert message.read_text() == "diloco: exit 1, rank 2: ValueError: bad batch\n"


def test_a_unit_of_one_process_names_no_rank(message: Path) -> None:
    leave_last_words(dict(of_rank(message, 0)) | {"WORLD_SIZE": "1"}, Exit.BAD_CONTRACT, "x")
    assert message.read_text() == "diloco: exit 64: x\n"


def test_nothing_is_written_outside_of_a_learners_pod(message: Path) -> None:
    leave_last_words({contract.ENV_TERMINATION_LOG: str(message)}, 1, "the syncer's message is its result")
    leave_last_words({contract.ENV_UNIT: "h100-0"}, 1, "x")
    leave_last_words(dict(of_rank(message, 0)) | {contract.ENV_TERMINATION_LOG: str(message.parent / "no" / "file")}, 1, "x")
    assert message.read_text() == ""


@pytest.mark.parametrize("line", ["ValueError: x", "diloco: exit: x", "diloco: exit 9999: x", "exit 65: x", ""])
def test_other_lines_are_no_last_words(line: str) -> None:
    assert parse_last_words(line) is None


def run(program: str, message: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], env=dict(of_rank(message, 2)), capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_an_exception_that_ends_a_process_is_its_last_words_and_its_log_has_it_too(message: Path) -> None:
    program = "from diloco.last_words import report_exceptions; report_exceptions(); report_exceptions(); raise ValueError('bad\\nbatch')"
    ended = run(program, message)
    assert ended.returncode == 1
    assert ended.stderr.rstrip().endswith("ValueError: bad\nbatch")
    assert message.read_text() == "diloco: exit 1, rank 2: ValueError: bad batch\n"


@pytest.mark.slow
def test_a_child_that_was_forked_does_not_speak_for_the_process(message: Path) -> None:
    program = """
import os, sys
from diloco.last_words import report_exceptions
report_exceptions()
if os.fork() == 0:
    sys.excepthook(ValueError, ValueError("of the child"), None)
    os._exit(0)
os.wait()
"""
    assert run(program, message).returncode == 0
    assert message.read_text() == ""


@pytest.mark.full
@pytest.mark.slow
def test_exception_of_a_rank_reaches_the_message_under_torchrun(message: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, time\nimport diloco.torch\nif os.environ['RANK'] == '1': raise ValueError('bad batch')\ntime.sleep(600)\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(tmp_path / "train.py")]
    environment = {name: value for name, value in of_rank(message, 0).items() if name.startswith("DILOCO")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert message.read_text() == "diloco: exit 1, rank 1: ValueError: bad batch\n"
    assert error_line(ended.stderr) == "torchrun: rank 1 failed first, with exit code 1"
