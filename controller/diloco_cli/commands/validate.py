"""`diloco validate`: show all errors of all files at once."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click
from diloco.wording import plural
from diloco_operator.api.job import load
from diloco_operator.api.names import CONFIG_MAPS, KIND
from diloco_operator.kube.client import Obj
from diloco_operator.program import catalogue as program

from diloco_cli.idle_accelerators import idle_pools
from diloco_cli.manifests import Manifest, ManifestError, Problem, load_manifests, problem_of, validate_jobs

EXIT_BAD_INPUT = 2


def catalogue_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --catalogue FILE, which is read before the command begins. If it cannot be used, the command ends."""

    @program.catalogue_option
    @functools.wraps(command)
    def wrapped(catalogue: Path | None, **rest: Any) -> Any:
        try:
            program.install_catalogue(catalogue)
        except program.CatalogueError as error:
            refuse(str(error))
        return command(**rest)

    return wrapped


@click.command(short_help="Check DiLoCoJobs without a cluster.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@catalogue_option
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format of the output.")
def validate(files: tuple[str, ...], output: str) -> None:
    """Check DiLoCoJobs as an API server with the CRD does, and the operator. Shows every error with its file, line, document and field, and
    of jobs without errors warnings: accelerators that a pool asks for and its program does not use.

    FILE is a YAML file with one or more jobs; - is standard input.

    \b
    Exit status:
      0  all jobs are valid; there may be warnings
      2  there are errors
    """
    jobs, _, problems = check(files)
    warnings = [] if problems else [warning for job in jobs for warning in _warnings(job)]
    if output == "json":
        valid = [{"file": job.file, "document": job.document, "name": job.name} for job in jobs]
        answer = {
            "valid": not problems,
            "jobs": valid,
            "problems": [asdict(problem) for problem in problems],
            "warnings": [asdict(warning) for warning in warnings],
        }
        click.echo(json.dumps(answer, indent=2))
    else:
        for problem in problems or warnings:
            click.echo(f"{'' if problems else 'warning: '}{problem}", err=True)
        if problems:
            click.echo(f"{plural(len(problems), 'problem')} found", err=True)
        else:
            for job in jobs:
                click.echo(f"{job.file}: document {job.document} ({job.name}): valid")
    if problems:
        raise SystemExit(EXIT_BAD_INPUT)


class Checked(NamedTuple):
    jobs: list[Manifest]
    config_maps: list[Obj]
    """ConfigMaps beside the jobs, such as the one with the script that `diloco submit --dry-run` prints."""
    problems: list[Problem]


def check(files: Sequence[str]) -> Checked:
    """Read and check the files. A file that cannot be read does not hide the problems of the others."""
    problems: list[Problem] = []
    try:
        manifests = load_manifests(files, beside=(CONFIG_MAPS.kind,))
    except ManifestError as error:
        problems += error.problems
        manifests = error.manifests
    jobs = [manifest for manifest in manifests if manifest.obj["kind"] == KIND]
    config_maps = [manifest.obj for manifest in manifests if manifest.obj["kind"] != KIND]
    try:
        jobs = validate_jobs(jobs)
    except ManifestError as error:
        problems += [problem for problem in error.problems if not any(_tells(earlier, problem) for earlier in problems)]
    order = {file: index for index, file in enumerate(files)}
    problems.sort(key=lambda problem: (order[problem.file], problem.document, problem.line))
    return Checked(jobs, config_maps, problems)


def _tells(earlier: Problem, problem: Problem) -> bool:
    """Whether `problem` only repeats `earlier`, as happens for an object without a name or metadata."""
    same = (earlier.file, earlier.document, earlier.name) == (problem.file, problem.document, problem.name)
    return same and bool(earlier.field) and (problem.field == earlier.field or problem.field.startswith(f"{earlier.field}."))


def _warnings(job: Manifest) -> Iterator[Problem]:
    for index, _, idle in idle_pools(load(job.obj).spec.pools):
        yield problem_of(job, f"spec.pools[{index}]", str(idle))


def refuse(*sentences: str) -> NoReturn:
    """Print what is wrong with the input, a sentence on each line, and end the command."""
    for text in sentences:
        click.echo(text, err=True)
    raise SystemExit(EXIT_BAD_INPUT)
