"""The `diloco` command. `kubectl diloco` is `diloco_cli.kubectl.main`."""

from __future__ import annotations

import importlib

import click

from diloco_cli.program import Program

_COMMANDS = {
    "up": "diloco_cli.diloco.up",
    "submit": "diloco_cli.diloco.submit",
    "init": "diloco_cli.diloco.init",
    "validate": "diloco_cli.commands.validate",
    "report": "diloco_cli.diloco.report",
    "plan": "diloco_cli.commands.plan",
    "doctor": "diloco_cli.commands.doctor",
    "export": "diloco_cli.commands.export",
    "snapshots": "diloco_cli.commands.snapshots",
    "tape": "diloco_cli.diloco.tape",
    "replay": "diloco_cli.diloco.replay",
    "simulate": "diloco_cli.diloco.simulate",
    "launch": "diloco_cli.diloco.launch",
    "crd": "diloco_cli.commands.crd",
}
"""The module of each command. It is imported when its command runs, so that `diloco crd` does not load the control plane."""


class _Commands(Program):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(importlib.import_module(_COMMANDS[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="diloco-operator", message="%(prog)s %(version)s")
def main() -> None:
    """Train one model by Decoupled DiLoCo on mixed accelerator pools."""
