"""`diloco` where only the runtime is installed."""

from __future__ import annotations

import pytest
from diloco import command


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other package brings the whole command."""
    monkeypatch.setattr(command, "entry_points", lambda group: [])


def test_help_says_what_there_is_and_where_the_rest_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert "diloco launch" in said
    assert "come with the package diloco-operator" in said


def test_a_command_of_the_other_package_is_bad_input_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["up", "job.yaml"]) == 2
    said = capsys.readouterr().err
    assert "come with the package diloco-operator" in said
    assert "error: up job.yaml is no command of the runtime" in said


def test_launch_is_diloco_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diloco.launch.main", lambda arguments: 3 if arguments == ["-m", "train", "--steps", "3"] else 1)
    assert command.main(["launch", "-m", "train", "--steps", "3"]) == 3
