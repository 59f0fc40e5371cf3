"""The report of a record: one HTML file that needs no other, with the dashboard's pages filled from the record. Pure.

See docs/decisions/0216-figures-and-plots.md. See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from statistics import median
from xml.etree.ElementTree import Element

from diloco.wording import loss_text
from diloco_local.record.effects import effects_of, tokens_sentence
from diloco_local.record.history import History, JobHistory, UnitHistory
from diloco_operator.api.phases import Phase
from diloco_operator.kube.fields import fields

from diloco_cli.dashboard.document import BASE, Placed, whole
from diloco_cli.dashboard.facts import JobFacts
from diloco_cli.dashboard.goodput_page import goodput_page
from diloco_cli.dashboard.job_document import job_pages
from diloco_cli.dashboard.page import Page, job_path, unit_path
from diloco_cli.history_charts import history_charts
from diloco_cli.html import Cell, figures, notes, scrolled, table
from diloco_cli.svg import element
from diloco_cli.view_model import JobView
from diloco_cli.view_text import count, duration


def page(history: History, remarks: Sequence[str]) -> str:
    """The HTML file as text. `remarks` are sentences about what is missing in the record."""
    of_job = {job.name: facts for job in history.jobs if (facts := _facts_of(job)) is not None}
    notices = [_origin(history), *notes([*remarks, *_missing(history)])]
    pages = [_with_run(job, placed, notices) for job in history.jobs if job.name in of_job for placed in job_pages(of_job[job.name], {})]
    if pages:
        pages.insert(1, Placed("/goodput", goodput_page(list(of_job.values()), (), BASE), "Goodput"))
    others = [job for job in history.jobs if job.name not in of_job]
    if others or len(of_job) != 1:
        pages.insert(0, Placed("/", _run(history, others, of_job, notices), "Run"))
    now = max((facts.now for facts in of_job.values()), default=history.began + history.seconds)
    return whole(pages[0].page.title, pages, now)


def _run(history: History, others: Sequence[JobHistory], of_job: Mapping[str, JobFacts], notices: Sequence[Element]) -> Page:
    """A page with links to all jobs, and with all that is known of `others`, the jobs without pages of their own."""
    names = ", ".join(job.title for job in history.jobs)
    title = f"Run of {names}" if names else "Run without a job"
    links = [element("a", job.title, href=_path(job)) for job in history.jobs if job.name in of_job]
    listed = [element("ul", *(element("li", link) for link in links))] if links else []
    return Page(title, {"head": [element("h1", title), *notices, *listed], **{job.name: list(_job(job)) for job in others}})


def _path(job: JobHistory) -> str:
    namespace, _, name = job.name.partition("/")
    return job_path(BASE, namespace, name)


def _with_run(job: JobHistory, placed: Placed, notices: Sequence[Element]) -> Placed:
    """Add to the page of a job what only the record says. Pages of units stay as they are."""
    if not placed.name:
        return placed
    sections = dict(placed.page.sections)
    sections["head"] = [*sections["head"], *notices, *_claims(job)]
    sections["run"] = [element("h2", "The run"), figures(_facts(job)), table(*_table(job), label=f"units of {job.title}")]
    return placed._replace(page=replace(placed.page, sections=sections))


def _facts_of(job: JobHistory) -> JobFacts | None:
    """The job as the API server had it. None if the record has no such object, or one of another version that this one cannot read."""
    if job.object is None:
        return None
    try:
        return JobFacts(JobView.of(job.object), fields(job.object, "spec"), (), (), job, job.object_at, followed=False)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _origin(history: History) -> Element:
    began = datetime.fromtimestamp(history.began, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    ending = f", {history.ending}" if history.ending else ", without an end on record: the command runs yet, or was killed"
    return element("p", f"{began}, {duration(history.seconds)} of running{ending}. {history.command}", class_="soft")


def _missing(history: History) -> Iterator[str]:
    for job in history.jobs:
        if job.missing:
            yield f"{job.title}: {job.missing:,} steps and merges are missing, because the syncer had forgotten them before it was asked."


def _job(job: JobHistory) -> Iterator[Element]:
    yield element("h2", job.title)
    yield element("p", f"{job.state}, outer step {job.t:,} of {job.outer_steps:,}", class_="soft")
    yield figures(_facts(job))
    yield from _claims(job)
    yield scrolled(history_charts(job), f"Timeline of {job.title}")
    yield table(*_table(job), label=f"units of {job.title}")


def _claims(job: JobHistory) -> Iterator[Element]:
    if job.faults:
        sentences = [*(effect.sentence() for effect in effects_of(job)), f"T{tokens_sentence(job)[1:]}"]
        yield element("div", *(element("p", f"{text}.") for text in sentences), class_="claims")


def _facts(job: JobHistory) -> Iterator[tuple[str, str]]:
    yield "loss", loss_text(job.loss, 5) if job.loss is not None else "-"
    if job.held_out_loss is not None:
        yield "held-out loss", loss_text(job.held_out_loss, 5)
    yield "tokens", f"{job.tokens:,}"
    yield "time", duration(job.end)
    merged = [len(merge.units) for merge in job.merges]
    yield "units in a merge", f"{sum(merged) / len(merged):.2f} of {len(job.units)}" if merged else "-"
    yield "exchanged", f"{count(sum(unit.received_bytes + unit.sent_bytes for unit in job.units.values()))}B"
    yield "goodput", f"{job.share(Phase.TRAINING):.1%} of unit time"


_BADPUT = tuple(phase for phase in Phase if phase.use is not None and phase is not Phase.TRAINING)


def _table(job: JobHistory) -> tuple[Sequence[str], Sequence[Sequence[Cell]]]:
    phases = [phase for phase in _BADPUT if job.share(phase)]
    head = ["unit", "tokens", "steps", "median step", "longest", "recovered in", "sent", "received", "training", *phases]
    return head, [list(_row(job, job.units[name], phases)) for name in sorted(job.units)]


def _row(job: JobHistory, unit: UnitHistory, phases: Sequence[Phase]) -> Iterator[Cell]:
    namespace, _, name = job.name.partition("/")
    lengths = [gap.seconds / gap.steps for gap in unit.gaps]
    yield element("a", unit.name, href=unit_path(BASE, namespace, name, unit.name))
    yield f"{unit.tokens:,}"
    yield f"{unit.steps:,}"
    yield f"{median(lengths):.3f} s" if lengths else "-"
    yield f"{max(gap.seconds for gap in unit.gaps):.3f} s" if lengths else "-"
    yield ", ".join(f"{recovery.seconds:.1f} s" for recovery in unit.recoveries) or "-"
    yield f"{count(unit.received_bytes)}B"
    yield f"{count(unit.sent_bytes)}B"
    yield f"{unit.share(Phase.TRAINING):.1%}"
    for phase in phases:
        share = unit.share(phase)
        yield f"{share:.1%}" if share else "-"
