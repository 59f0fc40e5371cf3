"""What `diloco up` tells from its record at the end of a run, and the files that it writes.

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
    """Write or replace `file`. Raises NotWritten."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise NotWritten(f"{file} cannot be written: {error.strerror or error}") from error


def claims(job: JobHistory, since: float = 0.0) -> list[str]:
    """Sentences about what each fault from `since` on did, and whether the tokens are exact. Empty without faults."""
    sentences = [effect.sentence() for effect in effects_of(job) if effect.fault.at >= since]
    return [*sentences[:-1], f"{sentences[-1]}; {tokens_sentence(job)}"] if sentences else []


@dataclass(frozen=True, slots=True)
class Recorded:
    """What `diloco up` tells from its record."""

    claims: Sequence[str] = ()
    """What the faults of this run did, in sentences."""
    effects: Sequence[dict[str, Any]] = ()
    """The same as `claims`, for programs."""
    remarks: Sequence[str] = ()
    """Where the report is, and what is missing in the record."""
    report: Path | None = None


def recorded(state_dir: Path, jobs: Collection[str], writer: RecordWriter, *, write: bool) -> Recorded:
    """Sum up the run that has just ended, with these jobs (namespace/name), and write its report if `write`. Problems become remarks and
    not errors, since the run's result does not depend on its record."""
    lost = [f"{writer.dropped:,} lines of the record are lost: {writer.error}"] if writer.dropped else []
    record = RecordReader(state_dir)
    try:
        history = history_of(record)
    except NoRecord as error:
        return Recorded(remarks=[*lost, str(error)])
    of_run = [job for job in history.jobs if job.name in jobs]
    sentences = [f"{job.title}: {text}." for job in of_run for text in claims(job, job.last_run)]
    effects = [
        {"job": job.name, **effect.as_json(), "tokens": tokens_sentence(job)}
        for job in of_run
        for effect in effects_of(job)
        if effect.fault.at >= job.last_run
    ]
    if not write:
        return Recorded(sentences, effects, lost)
    file = state_dir / REPORT_NAME
    try:
        write_text(file, page(history, record.remarks))
    except NotWritten as error:
        return Recorded(sentences, effects, [*lost, f"There is no report: {error}"])
    return Recorded(sentences, effects, [*lost, f"Report of this run: {file.absolute()}"], file.absolute())
