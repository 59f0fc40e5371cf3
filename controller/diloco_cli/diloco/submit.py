"""`diloco submit`: a job for a training script, without YAML.

See docs/decisions/0258-submit-and-client.md.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import click
from diloco.durable import write_json
from diloco.export.places import ExportError, find_snapshot
from diloco_local.nodes import this_machine
from diloco_local.state_dir import StateDirUnusable, claim_folder
from diloco_operator.api.names import NODES, volume_claim_name
from diloco_operator.api.rules import MAX_POOL_NAME
from diloco_operator.api.spec import Capacity
from diloco_operator.fleet.slices import SliceKind
from diloco_operator.kube.client import Forbidden, Obj
from diloco_operator.kube.listing import list_all
from diloco_operator.kube.rest import RestClient

from diloco_cli.checks.nodes import views
from diloco_cli.cluster import CommandError, Target, note_on_stderr, on_cluster, target_options
from diloco_cli.commands.validate import catalogue_option, refuse
from diloco_cli.diloco.submission import (
    BadScript,
    Script,
    Submission,
    config_map_of,
    digest_of,
    job_of,
    name_of_job,
    read_script,
    stays_behind,
)
from diloco_cli.diloco.submitted import create_job, watch_job
from diloco_cli.diloco.up import Variable, run_here, view_of, without_values
from diloco_cli.diloco.up_run import UpOptions
from diloco_cli.gpu_slices import gpu_slices
from diloco_cli.jobs import reference
from diloco_cli.manifests import Manifest, ManifestError, validate_jobs
from diloco_cli.parameters_option import Quantity
from diloco_cli.pool_option import BadPool, PoolRequest, read_pool, simulated_nodes, slices_of
from diloco_cli.status_text import status_text
from diloco_cli.view_text import plain
from diloco_cli.yaml_text import yaml_text

_NO_IMAGE = "none"
"""The image in a run on this machine, where pods are processes."""


class _Command(click.Command):
    """Tells where options of the script belong, if one is unknown."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = "options of the script stand at the end, after --: diloco submit train.py --pool cpu=2 -- --lr 3e-4"
            raise click.UsageError(f"{error.format_message()} If it is the script's: {hint}", ctx) from error


@click.command(cls=_Command, short_help="Train with a script on a cluster's accelerators, or here, without YAML.")
@click.argument("script")
@click.argument("arguments", nargs=-1, metavar="[ARGS]...")
@catalogue_option
@click.option(
    "--pool", "pools", multiple=True, metavar="KIND=UNITS[xSIZE][,WORD…]",
    help="Learner units on this kind of hardware: h100=2, v5p=1x2x2x2 with a topology, h100=2x4 on 4 GPUs each, cpu=2. Words behind it: "
    "hosts=N of a unit, chips=N of a TPU's host, spot (or reserved, on-demand, flex-start, scavenged), autoscaler, min=N, spares=N, "
    "name=NAME. May be repeated.",
)  # fmt: skip
@click.option("--spot", is_flag=True, help="Use spot hardware for each --pool that does not say how it is held.")
@click.option("--queue", default="", metavar="NAME", help="LocalQueue of Kueue that gives each unit its quota.")
@click.option("--image", metavar="IMAGE", help="Image with Python, diloco and the script's packages. Needed for a cluster.")
@click.option("--in-image", is_flag=True, help="SCRIPT is a path in the image, which has it already.")
@click.option("--name", metavar="NAME", help="Name of the job. Default: the script's.")
@click.option("--steps", type=click.IntRange(min=1), default=1000, show_default=True, metavar="N", help="Outer steps of the job.")
@click.option("--min", "least", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Learner units that it needs.")
@click.option(
    "--sync-interval", type=click.IntRange(min=1), metavar="N", help="Local steps between two syncs of one fragment: syncInterval."
)
@click.option("--fragments", type=click.IntRange(min=1), metavar="N", help="Fragments of the model, at most one for each tensor.")
@click.option("--processes", type=click.IntRange(min=1), metavar="N", help="Processes of a host with GPUs. Default: one for each GPU.")
@click.option("--cpu", type=Quantity(), metavar="QUANTITY", help="CPU that each pod requests.")
@click.option("--memory", type=Quantity(), metavar="QUANTITY", help="Memory that each pod requests.")
@click.option("--storage", type=Quantity(), metavar="QUANTITY", help="Size of the syncer's volume.")
@click.option("--env", "variables", type=Variable(), multiple=True, metavar="NAME[=VALUE]", help="A variable for the script. Repeatable.")
@click.option("--dry-run", is_flag=True, help="Print the objects instead of creating them.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="Format of --dry-run.")
@click.option("--watch", is_flag=True, help="Show what happens until the job is over.")
@click.option("--local", is_flag=True, help="Run the job on this machine, as diloco up does, on simulated nodes of these kinds.")
@click.option(
    "--state-dir", type=click.Path(file_okay=False, path_type=Path), default=Path(".diloco"), show_default=True,
    help="With --local: directory for snapshots and logs.",
)  # fmt: skip
@target_options
def submit(
    target: Target, script: str, arguments: tuple[str, ...], pools: tuple[str, ...], spot: bool, queue: str,
    image: str | None, in_image: bool, name: str | None, steps: int, least: int, sync_interval: int | None, fragments: int | None,
    processes: int | None, cpu: str | None, memory: str | None, storage: str | None,
    variables: tuple[tuple[str, str], ...], dry_run: bool, output: str,
    watch: bool, local: bool, state_dir: Path,
) -> None:  # fmt: skip
    """Train with SCRIPT, a Python program that joins a job by diloco.torch or diloco.jax, on the kinds of hardware that --pool names.

    The script travels in a ConfigMap; it is one file. ARGS are its arguments; those that begin with - stand at the end, after --. What is
    left open, such as a TPU's topology, the nodes of the cluster decide. For more than these options, write the output of --dry-run to a
    file and go on from there.

    \b
    Exit status, with --watch or --local:
      0    the job is complete
      1    it failed, or the cluster refused it
      2    bad input
      130  interrupted; a job in a cluster goes on
    """
    _check_usage(target, pools, image, in_image=in_image, local=local, dry_run=dry_run, queue=queue)
    try:
        program = script if in_image else _read(script)
        job_name = name or name_of_job(script)
    except BadScript as error:
        refuse(str(error))
    wanted = Submission(
        name=job_name,
        script=program,
        image=image or _NO_IMAGE,
        pools=(),
        steps=steps,
        arguments=arguments,
        namespace=target.namespace,
        least=least,
        queue=queue,
        environment=dict(variables),
        processes=processes or (1 if local else None),
        cpu=cpu or "",
        memory=memory or "",
        storage=storage or "",
        sync_interval=sync_interval,
        fragments=fragments,
    )
    pool_options = _PoolOptions(pools, Capacity.SPOT if spot else None)
    local_pools = _pools(pool_options, None)  # also in a cluster: an option that is wrong everywhere ends the program before a request
    if local:
        _run_here(wanted.on(local_pools), state_dir)
    explicit_pools = _explicit(pool_options)
    if dry_run:
        _print(wanted.on(explicit_pools if explicit_pools is not None else _seen(target, pool_options)), output)
        return

    async def work(client: RestClient, namespace: str) -> bool:
        """Create the job. False if it was watched and did not complete."""
        placed_pools = explicit_pools if explicit_pools is not None else _pools(pool_options, await _slices(client))
        submission = wanted.on(placed_pools).in_namespace(namespace)
        await create_job(client, _valid(submission), config_map_of(submission))
        click.echo(f"{reference(job_name)} created in namespace {namespace}")
        if not watch:
            click.echo(f"kubectl diloco status {job_name} -n {namespace}    says how it goes")
            return True
        view = await watch_job(client, namespace, job_name, lambda line: click.echo(plain(datetime.now().astimezone(), line)))
        click.echo(status_text(view, time.time()))
        return view.complete

    if not on_cluster(target, work):
        raise SystemExit(1)


def _check_usage(
    target: Target, pools: Sequence[str], image: str | None, *, in_image: bool, local: bool, dry_run: bool, queue: str
) -> None:
    if local and (in_image or dry_run or target != Target()):
        raise click.UsageError("--local runs the script here: leave out --in-image, --dry-run, -n, --context and --kubeconfig")
    if not pools and local:
        raise click.UsageError("give --pool; --pool cpu=2 trains with two units on the processors of this machine")
    if not pools:
        raise click.UsageError("give --pool KIND=UNITS, such as --pool h100=2; diloco init writes down what the cluster has")
    if local and queue:
        raise click.UsageError("--local runs the script here, where no Kueue is: leave out --queue")
    if not local and not image:
        raise click.UsageError("give --image, an image with Python, diloco and what the script imports; or --local to run it here")


def _read(path: str) -> Script:
    """Read the script, and tell the user which of its imports do not travel with it. Raises BadScript."""
    file = Path(path)
    try:
        script = read_script(file.name, file.read_bytes(), "diloco submit")
        beside = {path_beside.stem for path_beside in file.parent.glob("*.py")} | {
            path_beside.parent.name for path_beside in file.parent.glob("*/__init__.py")
        }
    except OSError as error:
        raise BadScript(f"cannot read {path}: {error.strerror}. Of a script in the image say --in-image") from error
    if behind := stays_behind(script, beside):
        click.echo(
            f"note: {file.name} imports {', '.join(behind)}, which is beside it and does not travel with it: install it into the image",
            err=True,
        )
    return script


# --- pools ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _PoolOptions:
    texts: Sequence[str]
    """The values of --pool."""
    capacity: Capacity | None
    """The capacity of pools that name none."""

    def read(self, cluster_slices: Mapping[SliceKind, int] | None) -> list[PoolRequest]:
        """`cluster_slices`: see `read_pool`. Raises `BadPool`."""
        requests = [read_pool(text, cluster_slices) for text in self.texts]
        return [request.held_as(self.capacity) for request in requests] if self.capacity else requests


def _pools(options: _PoolOptions, cluster_slices: Mapping[SliceKind, int] | None) -> list[PoolRequest]:
    """Read the pools, or end the program and say which one is not possible."""
    try:
        requests = options.read(cluster_slices)
    except BadPool as error:
        refuse(str(error))
    names = [pool.name for pool in requests]
    if repeated := sorted({pool for pool in names if names.count(pool) > 1}):
        refuse(
            f"two pools would have the name {repeated[0]}: give one pool all the units, or name them apart by a word behind each, "
            f"such as {options.texts[names.index(repeated[0])]},name={repeated[0][: MAX_POOL_NAME - 2]}-b"
        )
    return requests


def _explicit(options: _PoolOptions) -> list[PoolRequest] | None:
    """Read the pools without a look at the cluster. None if they leave something open that its nodes decide."""
    try:
        return options.read({})
    except BadPool:
        return None


def _seen(target: Target, options: _PoolOptions) -> list[PoolRequest]:
    """Read the pools. The cluster's nodes decide what they leave open, or the catalogue, with a note, if no cluster answers."""

    async def ask(client: RestClient, _namespace: str) -> Mapping[SliceKind, int]:
        return await _slices(client)

    try:
        slices = on_cluster(target, ask)
    except CommandError as error:
        slices = None
        note_on_stderr(f"what --pool leaves open is the first of the catalogue, as no cluster could be asked: {error.message}")
    return _pools(options, slices)


async def _slices(client: RestClient) -> Mapping[SliceKind, int]:
    try:
        nodes = await list_all(client, NODES)
    except Forbidden as error:
        raise CommandError(
            f"you may not list nodes, which would decide what --pool leaves open: {error.message}. Write kinds as in the catalogue, and "
            "topologies: v5p=1x2x2x2"
        ) from error
    return slices_of(views(nodes, await gpu_slices(client, note_on_stderr)))


# --- here -------------------------------------------------------------------------------------------------------------
def _run_here(wanted: Submission, state_dir: Path) -> NoReturn:
    placed = wanted.in_namespace("default")
    config_map = config_map_of(placed)
    assert config_map is not None, "the script is a file here"
    # Not in the job, which goes into the record: values of --env are often secrets.
    job = _valid(replace(placed, environment={}))
    nodes = simulated_nodes(placed.pools, this_machine()[0]["status"]["capacity"])
    digests = _Digests(state_dir, placed)
    if note := digests.note():
        click.echo(note, err=True)
    command = ["diloco", *sys.argv[1:]]
    options = UpOptions(
        [job],
        nodes,
        state_dir,
        resume_command=shlex.join(command),
        recorded_command=without_values(command),
        environment=placed.environment,
        config_maps=[config_map],
        on_locked=digests.write,
    )
    run_here(options, view_of(None))


class _Digests:
    """Compares a job's script with the one of the job's last run in a state directory."""

    def __init__(self, state_dir: Path, job: Submission) -> None:
        assert not isinstance(job.script, str), "the script is a file here"
        self._state_dir = state_dir
        self._job = job
        self._now = digest_of(job.script)
        self._known = state_dir / "scripts" / f"{job.namespace}-{job.name}.json"

    def note(self) -> str:
        """A note if the job goes on from a snapshot of another script, else "". Raises CommandError."""
        try:
            before = self._known.read_text(encoding="utf-8").strip('"') if self._known.is_file() else self._now
        except OSError as error:
            raise CommandError(f"the state directory {self._state_dir} cannot be used: {error.strerror or error}") from error
        if before == self._now:
            return ""
        try:
            snapshot = find_snapshot(str(claim_folder(self._state_dir, self._job.namespace, volume_claim_name(self._job.name))))
        except ExportError:
            return ""
        return (
            f"note: {self._job.name} goes on from outer step {snapshot.t}, of a snapshot of another script: its SHA-256 was {before[:12]}… "
            f"and is {self._now[:12]}…. To begin anew give --name or --state-dir for another one"
        )

    def write(self) -> None:
        """Let later runs compare with this script. Call it once the state directory is locked: a run that is refused must not change what
        the next one is compared with. Raises StateDirUnusable."""
        try:
            write_json(self._known, self._now)
        except OSError as error:
            raise StateDirUnusable(f"the state directory {self._state_dir} cannot be used: {error.strerror or error}") from error


# --- the objects ------------------------------------------------------------------------------------------------------
def _valid(wanted: Submission) -> Obj:
    """Return the job with its defaults, or show all its problems and end the program."""
    try:
        [manifest] = validate_jobs([Manifest(job_of(wanted), "this job", 0)])
    except ManifestError as error:
        refuse(*map(str, error.problems))
    return manifest.obj


def _print(wanted: Submission, output: str) -> None:
    _valid(wanted)
    objects = [obj for obj in (config_map_of(wanted), job_of(wanted)) if obj is not None]
    if output == "json":
        click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2))
    else:
        click.echo(yaml_text(objects), nl=False)
