"""The program `kubectl diloco`: its help and its arguments. tests/cluster runs it against a real API server."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner
from diloco_cli.kubectl import main as kubectl


def test_help_names_every_command() -> None:
    shown = CliRunner().invoke(kubectl.main, ["--help"])
    assert shown.exit_code == 0
    for command in ("status", "units", "logs", "drain", "suspend", "resume", "retry", "explain", "plan", "validate", "crd"):
        assert f"\n  {command} " in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["status", "x", "-A"], "give a JOB or --all-namespaces, not both"),
        (["logs", "x", "syncer", "--host", "0"], "the syncer has no hosts"),
        (["drain", "x"], "Missing argument 'UNIT'"),
        (["suspend", "x", "--timeout", "soon"], "--timeout"),
    ],
)
def test_what_makes_no_sense_is_bad_input(arguments: list[str], words: str) -> None:
    shown = CliRunner().invoke(kubectl.main, arguments)
    assert shown.exit_code == 2
    assert words in shown.stderr


def test_a_cluster_that_is_not_configured_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    shown = CliRunner().invoke(kubectl.main, ["status"])
    assert shown.exit_code == 1
    assert "Error: no Kubernetes cluster is configured" in shown.stderr
    shown = CliRunner().invoke(kubectl.main, ["--kubeconfig", str(tmp_path / "none"), "status"])
    assert shown.exit_code == 1
    assert str(tmp_path / "none") in shown.stderr
