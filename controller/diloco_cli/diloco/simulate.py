"""`diloco simulate`: jobs on virtual time, with the coordinator of real ones. Each command has its module in `simulations`."""

from __future__ import annotations

import click

from diloco_cli.simulations.fig12 import fig_12
from diloco_cli.simulations.job import job
from diloco_cli.simulations.table1 import table_1
from diloco_cli.simulations.table4 import table_4
from diloco_cli.simulations.table5 import table_5
from diloco_cli.simulations.table13 import table_13


class _Simulations(click.Group):
    """A word that is no command is the file of `job`."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            return super().resolve_command(ctx, [job.name or "", *args])
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Simulations, short_help="Simulate jobs: what they would yield where chips fail.", subcommand_metavar="JOB.yaml|COMMAND ..."
)
def simulate() -> None:
    """Simulate jobs on virtual time, on the coordinator that runs in syncers. No process is started, and no model is trained.

    With the file of a job it says what goodput the job would have on a fleet, and with how many units it gets most work done:
    `diloco simulate JOB.yaml --fleet FILE`; see `diloco simulate job --help`.

    Each table shows what was published, what was fitted, and what was predicted before the first run, also where that failed.
    """


for _command in (job, table_1, table_4, table_5, table_13, fig_12):
    simulate.add_command(_command)
