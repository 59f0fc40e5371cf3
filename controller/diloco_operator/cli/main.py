"""The `diloco` command. `kubectl diloco` is `cli.kubectl`."""

from __future__ import annotations

import importlib

import click

_COMMANDS = {
    "up": "diloco_operator.cli.up",
    "validate": "diloco_operator.cli.validate",
    "report": "diloco_operator.cli.report",
    "plan": "diloco_operator.cli.plan",
    "doctor": "diloco_operator.cli.doctor",
    "export": "diloco_operator.cli.export",
    "tape": "diloco_operator.cli.tape",
    "replay": "diloco_operator.cli.replay",
    "simulate": "diloco_operator.cli.simulate",
    "launch": "diloco_operator.cli.launch",
    "crd": "diloco_operator.cli.crd",
    "local": "diloco_operator.cli.local_nodes",
}
"""The module of each command, imported when needed, so that `diloco crd` does not load the control plane."""


class _Commands(click.Group):
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
