"""`diloco report`: what a run of `diloco up` did, as one page or as a picture, from its record.

See docs/decisions/0216-figures-and-plots.md.
"""

from __future__ import annotations

from pathlib import Path

import click
from diloco_local.record.file import NoRecord, RecordReader
from diloco_local.record.history import History, JobHistory
from diloco_local.record.reading import history_of

from diloco_cli.diloco.report_page import page
from diloco_cli.diloco.run_report import REPORT_NAME, NotWritten, claims, write_text
from diloco_cli.history_charts import picture
from diloco_cli.svg import as_file


@click.command(short_help="Show what a run of `diloco up` did, as one HTML page.")
@click.argument("state_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help=f"The page to write; an existing one is replaced. Default: {REPORT_NAME} in STATE_DIR, or no page with --picture.",
)  # fmt: skip
@click.option(
    "--picture", "picture_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="An SVG file to write with loss and units over time and the faults marked.",
)  # fmt: skip
@click.option("--job", "name", metavar="NAME", help="The job in the picture, where the record has several.")
def report(state_dir: Path, output: Path | None, picture_file: Path | None, name: str | None) -> None:
    """Show what the runs of `diloco up` with this state directory did, from their record.

    The page needs no other file and no network: loss, units by phase, contributions per merge, steps and bytes over time, and what each
    fault did. The record (record.jsonl in STATE_DIR) grows while a job runs, so a report may be made at any time.

    \b
    Exit status:
      0  done
      1  there is no record, or a file could not be written
      2  bad input
    """
    try:
        record = RecordReader(state_dir)
        history = history_of(record)
        for remark in record.remarks:
            click.echo(remark, err=True)
        if picture_file is not None:
            job = _chosen(history, name)
            write_text(picture_file, as_file(picture(job)))
            click.echo(f"Picture of {job.title}: {picture_file}")
        elif name is not None:
            raise click.UsageError("--job chooses the job of --picture; the page has all jobs")
        if output is not None or picture_file is None:
            file = output if output is not None else state_dir / REPORT_NAME
            write_text(file, page(history, record.remarks))
            for job in history.jobs:
                for text in claims(job):
                    click.echo(f"{job.title}: {text}.")
            click.echo(f"Report: {file}")
    except (NoRecord, NotWritten) as error:
        raise click.ClickException(str(error)) from error


def _chosen(history: History, name: str | None) -> JobHistory:
    matching = [job for job in history.jobs if name in (None, job.name, job.title)]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(job.title for job in history.jobs) or "none"
    raise click.UsageError(f"the record has no job {name!r}; it has: {names}" if name else f"choose one of the jobs with --job: {names}")
