"""`diloco up`: run jobs to their end on this machine."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
from diloco import contract
from diloco_local.addresses import NoAddressLeft, PortTaken
from diloco_local.faults import BadFault, Fault, parse, unknown_units
from diloco_local.links import LinkShape
from diloco_local.processes import Priority, UnsupportedPlatform
from diloco_local.state_dir import StateDirBusy, StateDirUnusable
from diloco_operator.api.job import load
from diloco_operator.api.names import MANAGER
from diloco_operator.fleet.node import project_node
from diloco_operator.fleet.slice_kinds import kind_of, kinds_for, shape_of
from diloco_operator.fleet.slices import SliceKind
from diloco_operator.kube.client import ApiError, Obj
from diloco_operator.program.duration import Duration

from diloco_cli.commands.validate import catalogue_option, check, refuse
from diloco_cli.dashboard.installed import check_installed
from diloco_cli.diloco.simulations.options import ForPlace, Rate
from diloco_cli.diloco.up_run import Run, UpOptions
from diloco_cli.diloco.view import JsonView, LiveView, PlainView, View
from diloco_cli.fleet_file import BadFleet, load_fleet

_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_CONTRACT = f"{contract.ENV_UNIT.partition('_')[0]}_"
"""Prefix of all variables that the operator sets for a program."""


class _Fault(click.ParamType[Fault]):
    name = "fault"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Fault:
        try:
            return value if isinstance(value, Fault) else parse(str(value))
        except BadFault as error:
            self.fail(str(error), param, ctx)


class Variable(click.ParamType[tuple[str, str]]):
    """`NAME=VALUE`, or `NAME` alone for its value in this shell."""

    name = "variable"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, given, text = str(value).partition("=")
        if not _VARIABLE.fullmatch(name):
            self.fail(f"{name!r} is no name of a variable; write NAME=VALUE, or NAME for its value in this shell", param, ctx)
        if name.startswith(_CONTRACT):
            self.fail(f"{name} is set by the operator; programs get it by themselves", param, ctx)
        if not given and name not in os.environ:
            self.fail(f"{name} is not set in this shell; write {name}=VALUE", param, ctx)
        return name, text if given else os.environ[name]


@click.command(short_help="Run DiLoCoJobs on this machine, on simulated nodes.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@catalogue_option
@click.option("--fleet", metavar="FILE", help="Simulated nodes: a file with Kubernetes Node manifests. Default: this machine as cpu nodes.")
@click.option(
    "--cluster", "clusters", multiple=True, metavar="NAME=FILE",
    help="Another cluster, for pools with cluster: NAME, with the nodes of FILE and an operator of its own. May be repeated.",
)  # fmt: skip
@click.option(
    "--bandwidth", type=ForPlace(Rate()), multiple=True, metavar="[CLUSTER=]RATE",
    help="Bandwidth of the link from each other cluster to the syncers, each direction, such as tokyo=100Mbit/s.  [default: no limit]",
)  # fmt: skip
@click.option(
    "--syncer-bandwidth",
    type=Rate(),
    default=math.inf,
    help="Bandwidth of the syncers' link, which all other clusters share.  [default: no limit]",
)
@click.option(
    "--latency", type=ForPlace(Duration()), multiple=True, metavar="[CLUSTER=]DURATION",
    help="One-way latency of the link from each other cluster to the syncers, such as tokyo=40ms.  [default: 0s]",
)  # fmt: skip
@click.option(
    "--state-dir", type=click.Path(file_okay=False, path_type=Path), default=Path(".diloco"), show_default=True,
    help="Directory for snapshots and logs. A later run with it continues from the last snapshot.",
)  # fmt: skip
@click.option(
    "--fault", "faults", type=_Fault(), multiple=True, metavar="unit=NAME,step=N,signal=KILL",
    help="Send KILL, TERM, STOP or CONT to a unit (or to unit=syncer) at an outer step. May be repeated.",
)  # fmt: skip
@click.option(
    "--env", "variables", type=Variable(), multiple=True, metavar="NAME[=VALUE]",
    help="A variable for all programs; without VALUE its value in this shell. One that a pod's template sets wins. May be repeated.",
)  # fmt: skip
@click.option(
    "--priority", type=click.Choice([priority.value for priority in Priority]), default=Priority.LOW.value, show_default=True,
    help="Priority of the programs when processors are short: low leaves most to the rest of this machine, normal takes an equal share.",
)  # fmt: skip
@click.option("--timeout", type=Duration(above_zero=True), metavar="DURATION", help="Drain and fail if the jobs take longer, such as 10m.")
@click.option(
    "--report/--no-report", default=True, help="Whether to write report.html into the state directory at the end.  [default: report]"
)
@click.option(
    "--dashboard", is_flag=True, help="Serve pages of the jobs to a browser on this machine while they run; the address is shown."
)
@click.option(
    "-o", "--output", type=click.Choice(["live", "plain", "json"]), help="Form of the output. Default: live on a terminal, else plain."
)
def up(
    files: tuple[str, ...], fleet: str | None, clusters: tuple[str, ...], bandwidth: tuple[tuple[str, float], ...],
    syncer_bandwidth: float, latency: tuple[tuple[str, float], ...], state_dir: Path, faults: tuple[Fault, ...],
    variables: tuple[tuple[str, str], ...], priority: str, timeout: float | None, report: bool, dashboard: bool, output: str | None,
) -> None:  # fmt: skip
    """Run DiLoCoJobs to their end on this machine, with the same operator as in a cluster. Pods are local processes on simulated nodes.

    FILE is a YAML file with one or more jobs. Ctrl-C drains the jobs; the same command then continues from the last snapshot. A second
    Ctrl-C kills at once, and so does the first one when the time is up.

    \b
    Exit status:
      0    all jobs are complete
      1    a job failed, or a program once its job was done, or the time is up
      2    bad input
      130  interrupted
    """
    if dashboard:
        check_installed()
    jobs, config_maps = _objects(files)
    try:
        nodes = load_fleet(fleet)
        others = {name: load_fleet(file) for name, file in _clusters(clusters).items()}
    except BadFleet as error:
        refuse(*error.sentences)
    if sentences := [
        *_managed_elsewhere(jobs),
        *unknown_units(faults, jobs),
        *unknown_clusters(("--bandwidth", bandwidth), ("--latency", latency), known=others),
    ]:
        refuse(*sentences)
    rates, delays = dict(bandwidth), dict(latency)
    view = view_of(output)
    for text in hints(jobs, nodes, fleet, others):
        if output == "json":
            view.note(text)
        else:
            click.echo(text, err=True)
    options = UpOptions(
        jobs,
        nodes,
        state_dir,
        faults=faults,
        timeout=timeout,
        resume_command=shlex.join(["diloco", *sys.argv[1:]]),
        recorded_command=without_values(["diloco", *sys.argv[1:]]),
        environment=dict(variables),
        priority=Priority(priority),
        report=report,
        config_maps=config_maps,
        dashboard=dashboard,
        clusters=others,
        links={name: LinkShape(rates.get(name, rates.get("", math.inf)), delays.get(name, delays.get("", 0.0))) for name in others},
        syncer_link=LinkShape(syncer_bandwidth),
    )
    run_here(options, view)


def run_here(options: UpOptions, view: View) -> NoReturn:
    """Run the jobs and end the program with the exit status of `diloco up`."""
    _log_to(options.state_dir / "logs" / "operator.log")
    try:
        ending = asyncio.run(Run(options, view)())
    except (StateDirBusy, StateDirUnusable, UnsupportedPlatform, NoAddressLeft, PortTaken) as error:
        refuse(str(error))
    except ApiError as error:
        refuse(f"the job was rejected: {error}", *(f"{cause.field}: {cause.message}" for cause in error.causes))
    raise SystemExit(ending.exit_status)


def without_values(command: Sequence[str]) -> str:
    """Return a command of `diloco` for the record and its report, which people pass on: values of --env, often secrets, are left out."""
    ours = list(command)
    theirs = ours[ours.index("--") :] if "--" in ours else []  # a script's own arguments
    words: list[str] = []
    for word in ours[: len(ours) - len(theirs)]:
        if word.startswith("--env="):
            word = "=".join(word.split("=")[:2])
        elif words and words[-1] == "--env":
            word = word.partition("=")[0]
        words.append(word)
    return shlex.join([*words, *theirs])


def view_of(output: str | None) -> View:
    """`output` is None for live on a terminal, else plain."""
    kinds: dict[str, type[LiveView | PlainView | JsonView]] = {"live": LiveView, "plain": PlainView, "json": JsonView}
    return kinds[output or ("live" if sys.stdout.isatty() else "plain")]()


def _objects(files: Sequence[str]) -> tuple[list[Obj], list[Obj]]:
    """Return the jobs with their defaults and the ConfigMaps beside them, or show all problems and end the program."""
    jobs, config_maps, problems = check(files)
    if problems:
        refuse(*map(str, problems))
    return [_placed(manifest.obj) for manifest in jobs], [_placed(obj) for obj in config_maps]


def _placed(obj: Obj) -> Obj:
    metadata = {"namespace": "default", **obj["metadata"]}
    return {key: value for key, value in obj.items() if key != "status"} | {"metadata": metadata}


def _clusters(texts: Sequence[str]) -> dict[str, str]:
    """Return the file of each cluster."""
    files: dict[str, str] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not name or not equals or not file:
            refuse(f"--cluster {text}: write NAME=FILE, the name of the cluster and a file with its nodes")
        if name in files:
            refuse(f"--cluster {text}: cluster {name} is there twice; leave one out")
        files[name] = file
    return files


def unknown_clusters(*options: tuple[str, Sequence[tuple[str, float]]], known: Collection[str]) -> Iterator[str]:
    """Yield what is wrong with values for clusters."""
    for option, values in options:
        for cluster, _ in values:
            if cluster and cluster not in known:
                yield f"{option} {cluster}=…: cluster {cluster} is not here; give its nodes by --cluster {cluster}=FILE"
            elif not known:
                yield f"{option}: there is no other cluster; give its nodes by --cluster NAME=FILE"


def _managed_elsewhere(jobs: Sequence[Obj]) -> Iterator[str]:
    """Yield the jobs that the operator would ignore: they would never get a condition, and the command would wait for ever."""
    for job in jobs:
        if (manager := job["spec"].get("managedBy", MANAGER)) != MANAGER:
            name = job["metadata"]["name"]
            yield f"{name}: spec.managedBy is {manager!r}, which does not run here; remove the field to run the job on this machine"


def hints(jobs: Sequence[Obj], nodes: Sequence[Obj], fleet: str | None, others: Mapping[str, Sequence[Obj]] | None = None) -> Iterator[str]:
    """Yield what to tell before the start: pools whose hardware the fleet lacks, and suspended jobs. `others`: the nodes of other
    clusters. Pure."""
    kinds = {cluster: _kinds(of_cluster) for cluster, of_cluster in {"": nodes, **(others or {})}.items()}
    here = f"the fleet {fleet}" if fleet else "this machine (no --fleet was given)"
    for job in jobs:
        name = job["metadata"]["name"]
        for pool in load(job).spec.pools:
            shape = shape_of(pool)
            if pool.cluster not in kinds:
                yield f"{name}: pool {pool.name} is in cluster {pool.cluster}, which is not here; give its nodes by --cluster"
                continue
            where = f"cluster {pool.cluster}" if pool.cluster else here
            if not kinds_for(shape, kinds[pool.cluster]):
                yield f"{name}: pool {pool.name} asks for {shape}, and {where} has none; its units stay unplaced"
        if job["spec"].get("suspend"):
            yield f"{name}: spec.suspend is set; the job does not train until you remove it"


def _kinds(nodes: Sequence[Obj]) -> set[SliceKind]:
    return {kind for node in nodes if (kind := kind_of(project_node(node))) is not None}


def _log_to(file: Path) -> None:
    """Write the log of this process to a file, since the view uses the terminal."""
    handler = logging.FileHandler(file, delay=True)  # it is opened at the first record: by then this run has locked the state directory
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
