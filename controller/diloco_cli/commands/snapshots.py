"""`diloco snapshots`: which snapshots and stored states of a job there are, on this machine or behind a URI.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import click
from diloco.export.listing import SnapshotEntry, State, StateEntry, list_snapshots, list_states
from diloco.export.places import ExportError
from diloco.wording import bytes_text

from diloco_cli.cluster import CommandError
from diloco_cli.status_text import table
from diloco_cli.view_text import duration

HEADER = ("SNAPSHOT", "JOB", "STEP", "TOKENS", "SIZE", "AGE", "STATE")
STATES_HEADER = ("UNIT", "JOB", "STEP", "LOCAL STEP", "STATE OF", "SIZE", "AGE", "STATE")
EXIT_DAMAGED = 1


def snapshots_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every list of snapshots: --check and -o."""
    command = click.option(
        "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Format of the output."
    )(command)
    return click.option("--check", is_flag=True, help="Read each snapshot, and compare its checksum.")(command)


@click.command(short_help="List the snapshots of a job.")
@click.argument("source")
@click.option("--job", metavar="NAME", default="", help="List those of this job only.")
@snapshots_options
def snapshots(source: str, job: str, output: str, *, check: bool) -> None:
    """List the snapshots in SOURCE, of each folder the newest first: outer step, committed tokens, size, age, and whether it is whole.

    SOURCE is what `diloco export` takes: the state directory of `diloco up` (.diloco), a folder with snapshots, one snapshot, or a URI.
    diloco export SOURCE --snapshot NAME writes the model of one; spec.startFrom begins a job with it. A snapshot is complete if both of
    its files are there and have their sizes, and whole if with --check they have their checksums. Then what each unit has stored of its
    optimizer beside the copies at a URI (spec.training.checkpoint.learners), with the outer step of the snapshot after which it did. For a
    job in a cluster: kubectl diloco snapshots JOB.

    \b
    Exit status:
      0  all are complete, or whole
      1  there are none, or one is damaged or unfinished
    """
    try:
        show(list(list_snapshots(source, job=job, check=check)), list(list_states(source, job=job, check=check)), output)
    except ExportError as error:
        raise CommandError(str(error)) from error


def show(entries: Sequence[SnapshotEntry], states: Sequence[StateEntry] | None, output: str) -> None:
    """Print the lists, and end the command with EXIT_DAMAGED if an entry cannot be used. `states` is None if they were not looked for."""
    if output == "json":
        lists = {"snapshots": [asdict(entry) for entry in entries]}
        if states is not None:
            lists["states"] = [asdict(entry) for entry in states]
        click.echo(json.dumps(lists, indent=2))
    else:
        now = time.time()
        for text in _text(entries, now):
            click.echo(text)
        if states:
            click.echo("\nstored by units:")
            for text in table(
                STATES_HEADER,
                [
                    (entry.unit, entry.job, str(entry.step), str(entry.local_step), entry.kind, *_size_age_state(entry, now))
                    for entry in states
                ],
            ):
                click.echo(text)
    if ({entry.state for entry in entries} | {entry.state for entry in states or ()}) & {State.DAMAGED, State.UNFINISHED}:
        raise SystemExit(EXIT_DAMAGED)


def _text(entries: Sequence[SnapshotEntry], now: float) -> Iterable[str]:
    folders = list(dict.fromkeys(entry.folder for entry in entries))
    for number, folder in enumerate(folders):
        if number:
            yield ""
        yield f"in {folder}:"
        yield from table(HEADER, [_row(entry, now) for entry in entries if entry.folder == folder])


def _row(entry: SnapshotEntry, now: float) -> Sequence[str]:
    tokens = "" if entry.tokens is None else f"{entry.tokens:,}"
    return entry.snapshot, entry.job, str(entry.step), tokens, *_size_age_state(entry, now)


def _size_age_state(entry: SnapshotEntry | StateEntry, now: float) -> tuple[str, str, str]:
    age = "" if entry.saved is None else duration(max(0.0, now - entry.saved))
    return bytes_text(entry.bytes), age, f"{entry.state}: {entry.why}" if entry.why else str(entry.state)
