"""`diloco simulate JOB.yaml --fleet FILE`: what a job would yield on a fleet with different numbers of units."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
from diloco.simulation.fleet import Conditions
from diloco.simulation.fleet import simulate as simulate_fleet
from diloco.simulation.unit import TOKENS
from diloco.wording import plural

from diloco_cli.commands.validate import refuse
from diloco_cli.diloco.simulations.assumptions import Assumptions, assumption_options, assumptions_of
from diloco_cli.diloco.simulations.inputs import BadInput, JobOnFleet, job_on_fleet, numbers_of_units
from diloco_cli.diloco.simulations.job_output import Row, lines, measures, plot_job
from diloco_cli.diloco.simulations.options import Units
from diloco_cli.diloco.simulations.placement import SimulatedOperator
from diloco_cli.status_text import table
from diloco_cli.svg import as_file


@click.command("simulate", short_help="What goodput a job would have on a fleet that fails.")
@click.argument("file", metavar="JOB.yaml")
@click.option("--fleet", metavar="FILE", help="Node manifests: the fleet, all the job's own. Default: this machine as cpu nodes.")
@click.option(
    "--units",
    type=Units(),
    default=None,
    metavar="M,M…",
    help="Numbers of units to compare, such as 2,4,8.  [default: up to 8 numbers from learners.min to what fits]",
)
@assumption_options
@click.option(
    "-o", "--output", type=click.Choice(["table", "json", "svg"]), default="table", show_default=True,
    help="Format of the output; svg: a plot, for a file.",
)  # fmt: skip
def simulate(file: str, fleet: str | None, units: tuple[int, ...] | None, output: str, **options: Any) -> None:
    """Show what goodput the job in JOB.yaml would have on the fleet, and with how many units it gets most work done. It runs on virtual
    time, on the coordinator that runs in syncers: no process is started, and no model is trained.

    The operator's own code places the units as in a cluster; what is left over are spares. A failure of an accelerator takes its host, or
    its TPU slice, out and ends the unit. It starts again on a free slice of its pool, or the job has another unit on another kind if the
    pools allow it, or it waits. When a better slice is free again, a unit moves there as `spec.placement` says. Nodes that their labels
    call spot are reclaimed and come back: their units end the step that they are in, if the notice is long enough, and start again
    elsewhere. Units are as fast as the slowest of their nodes (local.diloco.dev/relative-speed).

    Each unit has a link to the syncer, and a connection for each of its processes. A narrow link, latency and losses stop no accelerator;
    they cost merged work.

    \b
    Exit status:
      0  done
      2  bad input, or no unit fits
    """
    assumptions = assumptions_of(options)
    try:
        given = job_on_fleet(file, fleet)
        widest = SimulatedOperator(given.manifest, given.nodes, given.spec.learners.max)
        if not widest.placed:
            raise BadInput(f"{file}: no unit has hardware: {widest.message}")
        conditions = assumptions.on(widest)
        rows = _rows(given, widest, units, conditions, assumptions)
    except BadInput as error:
        refuse(*error.sentences)
    best = max(rows, key=lambda row: row.work)
    if output == "json":
        for line in lines(rows, best):
            click.echo(json.dumps(line))
        return
    if output == "svg":
        click.echo(as_file(plot_job(given.name, rows)), nl=False)
        return
    columns = [f"{row.units}" for row in rows]
    for row in table(("UNITS", *columns), measures(rows), numbers=columns):
        click.echo(row)
    paragraphs = [
        _COLUMNS.format(widest=plural(rows[-1].units, "unit")),
        f"{plural(best.units, 'unit')} with {plural(best.spares, 'spare slice')} get most work done.",
        *([f"Not more: {rows[-1].message}"] if rows[-1].message else []),
        *([_BYTES] if conditions.links.parameters else []),
    ]
    for paragraph in paragraphs:
        click.echo(click.wrap_text(paragraph, _LINE))


_LINE = 80
_COLUMNS = (
    "WORK: merged tokens, in percent of what {widest} would train without failures. GOODPUT: percent of the time of the units' slices; "
    "below it, where the rest went. MERGED: units in each merge. STALENESS: outer steps since a unit's last contribution."
)
_BYTES = "UP, DOWN: what all units and the syncer send, in the mean over all of the time, with what is sent again."


def _rows(
    given: JobOnFleet, widest: SimulatedOperator, asked: Sequence[int] | None, conditions: Conditions, assumptions: Assumptions
) -> list[Row]:
    """Simulate each number of units in `asked`. If None, choose numbers up to all units that fit. Raises `BadInput`."""
    spec, fits = given.spec, len(widest.placed)
    numbers = asked if asked is not None else numbers_of_units(min(spec.learners.min, fits), fits)
    results = []
    for most in numbers:
        if most < spec.training.quorum:
            raise BadInput(f"--units {most}: the quorum of the job is {spec.training.quorum}")
        operator = SimulatedOperator(given.manifest, given.nodes, spec.learners.max if asked is None and most == fits else most)
        placed = operator.placed
        if len(placed) < most:
            raise BadInput(f"--units {most}: the pools of the job and the fleet have room for {len(placed)}: {operator.message}")
        units, spares, message, whole = len(placed), sum(operator.spares.values()), operator.message, sum(unit.speed for unit in placed)
        outcome = simulate_fleet(spec.training, operator, operator.groups, conditions, assumptions.seconds, assumptions.seed)
        done = outcome.merged / TOKENS * conditions.step_seconds / assumptions.seconds
        results.append((units, spares, message, outcome, done, whole))
    most_work = max(whole for *_, whole in results)
    return [Row(units, spares, message, outcome, done / most_work) for units, spares, message, outcome, done, _ in results]
