"""`diloco simulate JOB.yaml --fleet FILE`: what a job would yield on a fleet, by its number of units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import click
from diloco.goodput import BADPUT
from diloco.simulation.fleet import Conditions, simulate
from diloco.simulation.job import Outcome
from diloco.simulation.slices import Reclaims, Slowdowns
from diloco.simulation.unit import TOKENS
from diloco.wording import plural

from diloco_operator.api.spec import Spec
from diloco_operator.cli.duration import Duration
from diloco_operator.cli.fleet_file import BadFleet, load_fleet
from diloco_operator.cli.manifests import ManifestError, load_manifests, validate_jobs
from diloco_operator.cli.simulations.output import output_option, print_json, print_table, print_text, seed_option
from diloco_operator.cli.simulations.placement import SimulatedOperator
from diloco_operator.kube.client import Obj
from diloco_operator.reconcile import parse_job

EXIT_BAD_INPUT = 2
_MOST_ROWS = 8


@dataclass(frozen=True, slots=True)
class Row:
    """The job with so many units."""

    units: int
    spares: int
    message: str
    """Why there are not more; "": there are as many as the job may have."""
    outcome: Outcome
    work: float
    """Merged tokens, in what all units that fit would train without failures, starts and compilation; 0..1."""


@click.command("job", short_help="A job of yours on a fleet, by its number of units.")
@click.argument("file", metavar="JOB.yaml")
@click.option("--fleet", required=True, help="Node manifests: the fleet, which is all the job's own; see `diloco up`.")
@click.option(
    "--failure-rate",
    type=click.FloatRange(min=0.0),
    default=0.17,
    show_default=True,
    help="Failures of one accelerator in a year. Llama 3 reported one in 5.8 years.",
)
@click.option("--step", type=Duration(), default="5s", show_default=True, help="Of a unit on a node of speed 1.")
@click.option("--start", type=Duration(), default="60s", show_default=True, help="From the slice to the program: pod, image, start.")
@click.option("--compile", "compilation", type=Duration(), default="60s", show_default=True, help="From the program to its first step.")
@click.option("--detect", type=Duration(), default="10s", show_default=True, help="From a failure to the next attempt.")
@click.option("--repair", type=Duration(), default="20m", show_default=True, help="Until a slice is back, in the mean.")
@click.option(
    "--reclaims",
    type=click.FloatRange(min=0.0),
    default=0.0,
    show_default=True,
    help="Of one spot slice or host in a day.",
)
@click.option("--notice", type=Duration(), default="30s", show_default=True, help="From the cloud's word until a spot slice is gone.")
@click.option("--away", type=Duration(), default="30m", show_default=True, help="Until reclaimed spot capacity is back, in the mean.")
@click.option("--reclaim-all", is_flag=True, help="All spot capacity goes and comes back at once.")
@click.option("--slowdowns", type=click.FloatRange(min=0.0), default=0.0, show_default=True, help="Of one slice or host in a day.")
@click.option("--slow-factor", type=click.FloatRange(min=1.0), default=2.0, show_default=True, help="By what steps are longer meanwhile.")
@click.option("--slow-time", type=Duration(), default="10m", show_default=True, help="How long a slowdown takes.")
@click.option("--time", "seconds", type=Duration(), default="12h", show_default=True, help="Virtual time of each row.")
@seed_option
@output_option
def job(
    file: str,
    fleet: str,
    failure_rate: float,
    step: float,
    start: float,
    compilation: float,
    detect: float,
    repair: float,
    reclaims: float,
    notice: float,
    away: float,
    reclaim_all: bool,
    slowdowns: float,
    slow_factor: float,
    slow_time: float,
    seconds: float,
    seed: int,
    output: str,
) -> None:
    """Show what goodput the job in JOB.yaml would have on the fleet, and with how many units it gets most work done.

    The operator's own code places the units as in a cluster; what is left over are spares. A failure of an accelerator takes its host, or
    its TPU slice, out and ends the unit. It starts again on a free slice of its pool, or the job has another unit on another kind if the
    pools allow it, or it waits. Nodes that their labels call spot are reclaimed and come back: their units end the step that they are in,
    if the notice is long enough, and start again elsewhere. Units are as fast as the slowest of their nodes
    (local.diloco.dev/relative-speed).

    \b
    Exit status:
      0  done
      2  bad input, or no unit fits
    """
    manifest, spec = _job(file)
    try:
        nodes = load_fleet(fleet)
    except BadFleet as error:
        _refuse(*error.sentences)
    conditions = Conditions(
        failure_rate,
        step,
        start,
        compilation,
        detect,
        repair,
        Reclaims(reclaims, notice, away, reclaim_all),
        Slowdowns(slowdowns, slow_factor, slow_time),
    )
    found = _rows(manifest, spec, nodes, conditions, seconds, seed)
    if not found:
        _refuse(f"{file}: no unit has hardware: {SimulatedOperator(manifest, nodes, spec.learners.max).message}")
    best = max(found, key=lambda row: row.work)
    if output == "json":
        print_json(_lines(found, best))
        return
    print_table(
        ("UNITS", *(f"{row.units}" for row in found)),
        _measures(found),
        left=("UNITS",),
    )
    print_text(
        f"WORK: merged tokens, in percent of what {plural(found[-1].units, 'unit')} would train without failures. GOODPUT: percent of "
        "the time of the units' slices; below it, where the rest went. MERGED: units in each merge. STALENESS: outer "
        "steps since a unit's last contribution.",
        f"{plural(best.units, 'unit')} with {plural(best.spares, 'spare slice')} get most work done.",
        *([f"Not more: {found[-1].message}"] if found[-1].message else []),
    )


def _measures(found: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    yield "SPARE SLICES", *(f"{row.spares}" for row in found)
    yield "WORK", *(f"{100 * row.work:.1f}" for row in found)
    yield "FAILURES", *(f"{row.outcome.failures}" for row in found)
    if any(row.outcome.reclaimed for row in found):
        yield "RECLAIMED", *(f"{row.outcome.reclaimed}" for row in found)
    yield "UPTIME", *(f"{100 * row.outcome.uptime:.1f}" for row in found)
    yield "MERGED", *(f"{row.outcome.contributions:.2f}" for row in found)
    yield "STALENESS", *(f"{row.outcome.staleness:.2f}" for row in found)
    yield "GOODPUT", *(f"{100 * row.outcome.goodput:.1f}" for row in found)
    for use in BADPUT:
        yield f"  {use.value}", *(f"{100 * row.outcome.accounts.share(use):.1f}" for row in found)


def _job(file: str) -> tuple[Obj, Spec]:
    try:
        jobs = validate_jobs(load_manifests([file]))
    except ManifestError as error:
        _refuse(*(str(problem) for problem in error.problems))
    if len(jobs) != 1:
        _refuse(f"{file} has {plural(len(jobs), 'job')}; give one with one job")
    spec = parse_job(jobs[0].obj).spec
    assert spec is not None, "the job was validated"
    return jobs[0].obj, spec


def _refuse(*sentences: str) -> NoReturn:
    for sentence in sentences:
        click.echo(sentence, err=True)
    raise SystemExit(EXIT_BAD_INPUT)


def numbers_of_units(least: int, most: int) -> list[int]:
    """At most `_MOST_ROWS` from `least` to `most`: all, or such that neighbours have nearly the same ratio."""
    if most - least < _MOST_ROWS:
        return list(range(least, most + 1))
    ratio = (most / least) ** (1 / (_MOST_ROWS - 1))
    return sorted({round(least * ratio**index) for index in range(_MOST_ROWS)})


def _rows(manifest: Obj, spec: Spec, nodes: Sequence[Obj], conditions: Conditions, seconds: float, seed: int) -> list[Row]:
    widest = SimulatedOperator(manifest, nodes, spec.learners.max).placed
    if not widest:
        return []
    whole = sum(unit.speed for unit in widest)
    found = []
    for most in numbers_of_units(min(spec.learners.min, len(widest)), len(widest)):
        operator = SimulatedOperator(manifest, nodes, spec.learners.max if most == len(widest) else most)
        units, spares, message = len(operator.placed), sum(operator.spares.values()), operator.message
        outcome = simulate(spec.training, operator, operator.groups, conditions, seconds, seed)
        found.append(Row(units, spares, message, outcome, outcome.merged / TOKENS * conditions.step_seconds / (whole * seconds)))
    return found


def _lines(found: Sequence[Row], best: Row) -> Iterator[dict[str, Any]]:
    """A JSON object for each number of units. Shares are 0..1."""
    for row in found:
        outcome = row.outcome
        yield {
            "units": row.units,
            "spares": row.spares,
            "work": round(row.work, 4),
            "mostWork": row is best,
            "goodput": round(outcome.goodput, 4),
            "uptime": round(outcome.uptime, 4),
            "failures": outcome.failures,
            "reclaimed": outcome.reclaimed,
            "badput": {use.value: round(outcome.accounts.share(use), 4) for use in BADPUT},
            "contributionsPerMerge": round(outcome.contributions, 3),
            "mergedTokens": round(outcome.merged_tokens, 4),
            "staleness": round(outcome.staleness, 3),
            "outerSteps": outcome.outer_steps,
            "message": row.message,
        }
