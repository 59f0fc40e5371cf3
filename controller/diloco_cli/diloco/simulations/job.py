"""`diloco simulate JOB.yaml --fleet FILE`: what a job would yield on a fleet, by its number of units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NoReturn

import click
from diloco.simulation.fleet import Conditions, Links, simulate
from diloco.simulation.slices import Reclaims, Slowdowns
from diloco.simulation.unit import TOKENS
from diloco.wording import plural
from diloco_operator.api.spec import Spec
from diloco_operator.kube.client import Obj
from diloco_operator.program.duration import Duration
from diloco_operator.reconcile import parse_job

from diloco_cli.diloco.simulations.job_output import Row, lines, measures, plot_job
from diloco_cli.diloco.simulations.options import Later, Parameters, Rate, Units
from diloco_cli.diloco.simulations.output import (
    latency_option,
    loss_option,
    output_option,
    print_json,
    print_svg,
    print_table,
    print_text,
    seed_option,
)
from diloco_cli.diloco.simulations.placement import SimulatedOperator
from diloco_cli.fleet_file import BadFleet, load_fleet
from diloco_cli.manifests import ManifestError, load_manifests, validate_jobs

EXIT_BAD_INPUT = 2
_MOST_ROWS = 8


@click.command("job", short_help="A job of yours on a fleet, by its number of units.")
@click.argument("file", metavar="JOB.yaml")
@click.option("--fleet", required=True, help="Node manifests: the fleet, which is all the job's own; see `diloco up`.")
@click.option(
    "--units",
    type=Units(),
    default=None,
    metavar="M,M…",
    help="Numbers of units to compare, such as 2,4,8.  [default: up to 8 numbers from learners.min to what fits]",
)
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
@click.option(
    "--join",
    "later",
    type=Later(),
    multiple=True,
    metavar="NODES=TIME",
    help="Nodes that come only after that time, by name or pattern, such as h100-*=2h. May be given several times.",
)
@click.option("--parameters", type=Parameters(), default=0, help="Of the model, such as 7B: bytes and bandwidths need it.")
@click.option(
    "--bandwidth", type=Rate(), default=math.inf, help="Of each unit's link, each direction, such as 5Gbit/s.  [default: no limit]"
)
@click.option("--syncer-bandwidth", type=Rate(), default=math.inf, help="Of the syncer's link, which all units share.  [default: no limit]")
@latency_option
@loss_option
@click.option("--time", "seconds", type=Duration(), default="12h", show_default=True, help="Virtual time of each row.")
@seed_option
@output_option
def job(
    file: str,
    fleet: str,
    units: tuple[int, ...] | None,
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
    later: tuple[tuple[str, float], ...],
    parameters: int,
    bandwidth: float,
    syncer_bandwidth: float,
    latency: float,
    loss: float,
    seconds: float,
    seed: int,
    output: str,
) -> None:
    """Show what goodput the job in JOB.yaml would have on the fleet, and with how many units it gets most work done.

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
    manifest, spec = _job(file)
    try:
        nodes = load_fleet(fleet)
    except BadFleet as error:
        _refuse(*error.sentences)
    if not parameters and not math.isinf(min(bandwidth, syncer_bandwidth)):
        _refuse("--bandwidth and --syncer-bandwidth need --parameters: what a link carries in a step depends on the size of the model")
    widest = SimulatedOperator(manifest, nodes, spec.learners.max)
    if not widest.placed:
        _refuse(f"{file}: no unit has hardware: {widest.message}")
    conditions = Conditions(
        failure_rate,
        step,
        start,
        compilation,
        detect,
        repair,
        Reclaims(reclaims, notice, away, reclaim_all),
        Slowdowns(slowdowns, slow_factor, slow_time),
        Links(parameters, bandwidth, syncer_bandwidth, latency, loss),
        _later(widest, later),
    )
    found = _rows(manifest, spec, nodes, widest, units, conditions, seconds, seed)
    best = max(found, key=lambda row: row.work)
    if output == "json":
        print_json(lines(found, best))
        return
    if output == "svg":
        print_svg(plot_job(manifest["metadata"]["name"], found))
        return
    print_table(
        ("UNITS", *(f"{row.units}" for row in found)),
        measures(found),
        left=("UNITS",),
    )
    print_text(
        f"WORK: merged tokens, in percent of what {plural(found[-1].units, 'unit')} would train without failures. GOODPUT: percent of "
        "the time of the units' slices; below it, where the rest went. MERGED: units in each merge. STALENESS: outer "
        "steps since a unit's last contribution.",
        f"{plural(best.units, 'unit')} with {plural(best.spares, 'spare slice')} get most work done.",
        *([f"Not more: {found[-1].message}"] if found[-1].message else []),
        *([_BYTES] if parameters else []),
    )


_BYTES = "UP, DOWN: what all units and the syncer send, in the mean over all of the time, with what is sent again."


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
    """Choose at most `_MOST_ROWS` numbers from `least` to `most`: all, or such that neighbours have nearly the same ratio."""
    if most - least < _MOST_ROWS:
        return list(range(least, most + 1))
    ratio = (most / least) ** (1 / (_MOST_ROWS - 1))
    return sorted({round(least * ratio**index) for index in range(_MOST_ROWS)})


def _later(operator: SimulatedOperator, later: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Group -> when it comes; of several times the last. A slice comes when the last of its hosts does."""
    found: dict[str, float] = {}
    for pattern, when in later:
        groups = operator.groups_named(pattern)
        if not groups:
            _refuse(f"--join {pattern}: no node that the job could use has such a name")
        for group in groups:
            found[group] = max(when, found.get(group, 0.0))
    return found


def _rows(
    manifest: Obj,
    spec: Spec,
    nodes: Sequence[Obj],
    widest: SimulatedOperator,
    asked: Sequence[int] | None,
    conditions: Conditions,
    seconds: float,
    seed: int,
) -> list[Row]:
    """Of the numbers that were asked for, or of a range; of `widest` where the whole fleet is there."""
    fits = len(widest.placed)
    numbers = asked if asked is not None else numbers_of_units(min(spec.learners.min, fits), fits)
    found = []
    for most in numbers:
        if most < spec.training.quorum:
            _refuse(f"--units {most}: the quorum of the job is {spec.training.quorum}")
        operator = SimulatedOperator(manifest, nodes, spec.learners.max if asked is None and most == fits else most)
        placed = operator.placed
        if len(placed) < most:
            _refuse(f"--units {most}: the pools of the job and the fleet have room for {len(placed)}: {operator.message}")
        units, spares, message, whole = len(placed), sum(operator.spares.values()), operator.message, sum(unit.speed for unit in placed)
        outcome = simulate(spec.training, operator, operator.groups, conditions, seconds, seed)
        done = outcome.merged / TOKENS * conditions.step_seconds / seconds
        found.append((units, spares, message, outcome, done, whole))
    most_work = max(whole for *_, whole in found)
    return [Row(units, spares, message, outcome, done / most_work) for units, spares, message, outcome, done, _ in found]
