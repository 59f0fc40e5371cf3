"""`diloco tape`: what happened to a job, as its syncer wrote it down.

See docs/decisions/0247-commit-records.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from diloco.tape.places import heads_in
from diloco.tape.records import TapeError

from diloco_cli.cluster import CommandError
from diloco_cli.status_text import table

HEADER = ("TIME", "EVENT", "STEP", "FRAGMENT", "UNIT", "DETAILS")


@click.group(short_help="Show what happened to a job, as its syncer wrote it down.")
def tape() -> None:
    """Read the tape of a job: one record for each merge, adoption, lease and session, on the volume of its syncer."""


@tape.command(short_help="Print the records of a tape.")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Form of the output.")
@click.option("--merges", is_flag=True, help="Only merges, and outer steps without one.")
def show(path: Path, output: str, *, merges: bool) -> None:
    """Print the records of the tape in PATH, oldest first. PATH is the state directory of `diloco up`, the folder of a syncer's volume, its
    tape, or one file of it. With -o json each record is one line, as it was written.

    A row of a merge has, for each unit in it, its share of the weights, its local step, and the last outer step that it knew of.
    """
    try:
        wanted = [head for head in heads_in(path) if not merges or head["type"] in ("merge", "skip")]
    except TapeError as error:
        raise CommandError(str(error)) from error
    if output == "json":
        for head in wanted:
            click.echo(json.dumps(head))
        return
    for line in table(HEADER, (_row(head) for head in wanted)):
        click.echo(line)


def _row(head: Mapping[str, Any]) -> Sequence[str]:
    at = datetime.fromtimestamp(head["at"], UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    step, fragment = (str(head[key]) if key in head else "" for key in ("t", "fragment"))
    unit = head.get("unit") or str(head.get("holder", "")).partition("/")[0]
    return at, head["type"], step, fragment, unit, "; ".join(_details(head))


def _details(head: Mapping[str, Any]) -> Iterator[str]:
    match head["type"]:
        case "segment":
            yield f"segment {head['segment']} of state {head['incarnation'][:8]}"
        case "join":
            yield f"attempt {head['attempt']} as {head['holder']}"
        case "lease":
            yield f"samples {head['start']} to {head['end'] - 1}"
        case "leave":
            yield head["holder"] if head["keep"] is None else f"{head['holder']}, with work under way"
        case "adopt":
            yield f"version {head['version']} after local step {head['step']}"
        case "refuse":
            yield f"{head['reason']}: {head['message']}"
        case "skip":
            yield head["message"]
        case "merge":
            yield from _merge(head)


def _merge(head: Mapping[str, Any]) -> Iterator[str]:
    total = sum(one["weight"] for one in head["given"].values())
    for unit, one in head["given"].items():
        marks = one["marks"]
        yield f"{unit} {one['weight'] / total:.1%} ({one['tokens']} tokens in {one['steps']} steps, at {marks['steps']}|{marks['seen']})"
    for unit, reason in head["refused"].items():
        yield f"{unit} refused: {reason}"
    if head["missed"]:
        yield f"without {', '.join(head['missed'])}"
    if head["cosine"] is not None:
        yield f"cosine {head['cosine']:.3f}"
    yield f"waited {head['seconds']:.2f} s"
    yield f"from version {head['base']}, {head['checksum']}"
