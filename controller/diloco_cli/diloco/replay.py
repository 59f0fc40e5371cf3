"""`diloco replay`: take the merges of a tape again, and compare.

See docs/decisions/0247-commit-records.md.
"""

from __future__ import annotations

from pathlib import Path

import click
from diloco.tape.places import find_tape
from diloco.tape.records import TapeError
from diloco.tape.replay import RepeatedMerge, Replay
from diloco.wording import plural

from diloco_cli.cluster import CommandError
from diloco_cli.status_text import table

HEADER = ("STEP", "FRAGMENT", "FROM", "UNITS", "COSINE", "CHECKSUM", "")
EXIT_DIFFERS = 3
"""Exit status if a merge gives other bytes than it gave in the job."""


@click.command(short_help="Take the merges of a tape again, bit for bit.")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--from", "snapshot", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="SNAPSHOT",
    help="Folder of the snapshot to begin with. Default: the oldest one that the tape goes on from.",
)  # fmt: skip
@click.option(
    "--orders", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
    help="Take the merges this many times: as they stand on the tape, and then in other orders of the fragments.",
)  # fmt: skip
def replay(path: Path, snapshot: Path | None, orders: int) -> None:
    """Take the merges of the tape in PATH again, from a snapshot, and compare the parameters after each with what the syncer had. PATH is
    the state directory of `diloco up`, the folder of a syncer's volume, or its tape.

    Exit status 3 if a merge gives other bytes. The values of a merge are on the tape until a snapshot holds it.
    """
    try:
        job = Replay(find_tape(path), snapshot)
        merges = list(job.repeat())
        digest = job.digest
        differing = {merge.commit.t for merge in merges if merge.found != merge.recorded}
        for seed in range(1, orders):
            differing |= {merge.commit.t for merge in job.repeat(seed) if merge.found != merge.recorded}
            if job.digest != digest:
                raise CommandError(f"order {seed} ends with other parameters than the order of the tape: {job.digest}, not {digest}")
    except TapeError as error:
        raise CommandError(str(error)) from error
    for line in table(HEADER, map(_row, merges)):
        click.echo(line)
    click.echo()
    in_orders = f", in {plural(orders, 'order')}" if orders > 1 else ""
    click.echo(f"{plural(len(merges), 'merge')} after {job.snapshot.name}{in_orders}: parameters and momenta {digest}")
    if differing:
        click.echo(f"other bytes than on the tape at outer steps {', '.join(map(str, sorted(differing)))}", err=True)
        raise click.exceptions.Exit(EXIT_DIFFERS)
    click.echo("all as the syncer had them")


def _row(merge: RepeatedMerge) -> tuple[str, ...]:
    commit = merge.commit
    cosine = "-" if commit.cosine is None else f"{commit.cosine:.3f}"
    same = "" if merge.found == merge.recorded else f"differs: {merge.recorded}"
    return str(commit.t), str(commit.fragment), str(commit.base), ", ".join(commit.given), cosine, merge.found, same
