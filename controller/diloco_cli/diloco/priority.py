"""`--priority`, of the commands that run pods as processes of this machine."""

from __future__ import annotations

import click
from diloco_local.processes import Priority

priority_option = click.option(
    "--priority", type=click.Choice([priority.value for priority in Priority]), default=Priority.LOW.value, show_default=True,
    help="Of the programs when processors are short: low leaves most to the rest of this machine, normal takes an equal share.",
)  # fmt: skip
