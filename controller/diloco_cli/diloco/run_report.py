"""What a record says at the end of a run, and the files that are made from it.

See docs/decisions/0216-figures-and-plots.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diloco_local.record.effects import effects_of, tokens_sentence
from diloco_local.record.file import NoRecord, RecordReader, RecordWriter
from diloco_local.record.history import JobHistory
from diloco_local.record.reading import history_of

from diloco_cli.diloco.report_page import page

REPORT_NAME = "report.html"


class NotWritten(Exception):
    """A file could not be written. The message says which and why."""


def write_text(file: Path, text: str) -> None:
    """Replace `file`. Raises NotWritten."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise NotWritten(f"{file} cannot be written: {error.strerror or error}") from error


def claims(job: JobHistory, since: float = 0.0) -> list[str]:
    """Return what each fault did from then on, and whether the tokens are exact, in sentences; nothing for a job without faults."""
    said = [effect.sentence() for effect in effects_of(job) if effect.fault.at >= since]
    return [*said[:-1], f"{said[-1]}; {tokens_sentence(job)}"] if said else []


@dataclass(frozen=True, slots=True)
class Recorded:
    """What `up` says of its record."""

    claims: Sequence[str] = ()
    """What the faults of this run did, in sentences."""
    effects: Sequence[dict[str, Any]] = ()
    """The same for programs."""
    remarks: Sequence[str] = ()
    """Where the report is, and what is missing."""
    report: Path | None = None


def recorded(state_dir: Path, jobs: Collection[str], writer: RecordWriter, *, write: bool) -> Recorded:
    """Record the run that has just ended, with these jobs (namespace/name). `write`: whether to write the report. Raises nothing: a run is
    what it is, whatever becomes of its record."""
    lost = [f"{writer.dropped:,} lines of the record are lost: {writer.error}"] if writer.dropped else []
    record = RecordReader(state_dir)
    try:
        history = history_of(record)
    except NoRecord as error:
        return Recorded(remarks=[*lost, str(error)])
    of_run = [job for job in history.jobs if job.name in jobs]
    said = [f"{job.title}: {text}." for job in of_run for text in claims(job, job.last_run)]
    effects = [
        {"job": job.name, **effect.as_json(), "tokens": tokens_sentence(job)}
        for job in of_run
        for effect in effects_of(job)
        if effect.fault.at >= job.last_run
    ]
    if not write:
        return Recorded(said, effects, lost)
    file = state_dir / REPORT_NAME
    try:
        write_text(file, page(history, record.remarks))
    except NotWritten as error:
        return Recorded(said, effects, [*lost, f"There is no report: {error}"])
    return Recorded(said, effects, [*lost, f"Report of this run: {file.absolute()}"], file.absolute())
