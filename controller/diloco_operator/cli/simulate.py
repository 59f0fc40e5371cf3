"""`diloco simulate`: jobs on virtual time, with the coordinator of real ones. Each command has its module in `simulations`."""

from __future__ import annotations

import click

from diloco_operator.cli.simulations.fig12 import fig_12
from diloco_operator.cli.simulations.table1 import table_1
from diloco_operator.cli.simulations.table4 import table_4
from diloco_operator.cli.simulations.table5 import table_5
from diloco_operator.cli.simulations.table13 import table_13


@click.group(short_help="Simulate jobs: what they would yield where chips fail.")
def simulate() -> None:
    """Simulate jobs on virtual time, on the coordinator that runs in syncers. No process is started, and no model is trained.

    Each table shows what was published, what was fitted, and what was predicted before the first run, also where that failed.
    """


for _command in (table_1, table_4, table_5, table_13, fig_12):
    simulate.add_command(_command)
