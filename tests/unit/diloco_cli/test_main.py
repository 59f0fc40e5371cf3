from __future__ import annotations

from importlib.metadata import entry_points, version

import diloco.command
import pytest
import yaml
from click.testing import CliRunner
from diloco_cli.diloco.main import main
from diloco_cli.kubectl import main as kubectl
from diloco_operator.api.crd import build_crd


@pytest.mark.slow
def test_crd_is_printed_as_yaml() -> None:
    result = CliRunner().invoke(main, ["crd"])
    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout) == build_crd()


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for command in ("up", "validate", "crd"):
        assert f"\n  {command} " in result.stdout


def test_version_is_that_of_the_package() -> None:
    assert version("diloco-operator") in CliRunner().invoke(main, ["--version"]).stdout


def test_unknown_command_is_bad_input() -> None:
    result = CliRunner().invoke(main, ["explode"])
    assert result.exit_code == 2
    assert "No such command 'explode'" in result.stderr


def test_the_installed_programs_are_these_commands() -> None:
    scripts = {entry.name: entry.load() for entry in entry_points(group="console_scripts") if entry.name in ("diloco", "kubectl-diloco")}
    assert scripts == {"diloco": diloco.command.main, "kubectl-diloco": kubectl.main}
    assert [entry.load() for entry in entry_points(group=diloco.command.COMMANDS)] == [main]


def test_as_a_plugin_it_calls_itself_kubectl_diloco(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        kubectl.main(["validate", "--help"])
    assert capsys.readouterr().out.startswith("Usage: kubectl diloco validate")
