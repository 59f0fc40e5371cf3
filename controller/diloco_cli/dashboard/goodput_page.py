"""The page of goodput: where the time of the units went, by job and by kind of hardware. Pure.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from xml.etree.ElementTree import Element

from diloco.goodput import Use
from diloco_operator.api.phases import Phase

from diloco_cli.dashboard.facts import JobFacts
from diloco_cli.dashboard.page import TEXTS, Page, job_link
from diloco_cli.html import Cell, notes, table
from diloco_cli.job_tables import NOTHING
from diloco_cli.phase_looks import LOOKS
from diloco_cli.svg import element
from diloco_cli.view_text import duration, hours_text, tokens_an_hour

_WIDTH = 220.0
type Shares = Mapping[Use, float]
"""Seconds of unit time by their use."""


def goodput_page(jobs: Sequence[JobFacts], sentences: Sequence[str], base: str) -> Page:
    """`sentences` say what could not be read."""
    whole = [(job_link(base, job.view), _whole(job)) for job in jobs]
    return Page(
        "Goodput",
        {
            "head": [element("h1", "Goodput"), *notes(sentences)],
            "jobs": [
                element("h2", "Jobs in this cluster, from their beginning"),
                *_table("JOB", whole, "Goodput of jobs", interruptions=_interruptions(jobs)),
            ],
            "cost": list(_cost(jobs, base)),
            "kinds": [
                element("h2", "Kinds of hardware, in the last hour as it was seen"),
                *_table("KIND", [(kind, shares) for kind, shares in sorted(by_kind(jobs).items())], "Goodput of kinds"),
            ],
        },
    )


def _whole(job: JobFacts) -> Shares:
    goodput = job.view.status.goodput
    return {use: goodput.unit_seconds.of(use) for use in Use} if goodput is not None else {}


def _interruptions(jobs: Iterable[JobFacts]) -> Sequence[str]:
    return [str(goodput.interruptions) if (goodput := job.view.status.goodput) is not None else NOTHING for job in jobs]


def _cost(jobs: Iterable[JobFacts], base: str) -> Iterator[Element]:
    """Yield a row for each job, cluster and accelerator. The tokens are those of the job in that cluster, by all its accelerators."""
    rows: list[list[Cell]] = []
    for job in jobs:
        status = job.view.status
        own = status.goodput.accelerator_hours if status.goodput is not None else None
        clusters = [("", own, status.tokens_here), *((part.name, part.accelerator_hours, part.tokens) for part in status.parts or ())]
        for cluster, hours, tokens in clusters:
            for kind, held in (hours or {}).items():
                rows.append([job_link(base, job.view), cluster or NOTHING, kind, hours_text(held), tokens_an_hour(hours or {}, tokens)])
    if rows:
        yield element("h2", "Accelerator-hours, from the jobs' beginning")
        head = ("JOB", "CLUSTER", "ACCELERATOR", "HOURS", "TOKENS/ACCELERATOR-HOUR")
        yield table(head, rows, label="Accelerator-hours", texts=TEXTS)


def by_kind(jobs: Iterable[JobFacts]) -> dict[str, dict[Use, float]]:
    """Seconds of unit time in the last hour by kind of hardware and use, from the timelines of the units."""
    kind_seconds: dict[str, dict[Use, float]] = {}
    for job in jobs:
        kinds = {pool["name"]: f"{pool.get('accelerator', '')} {pool.get('topology', '')}".strip() for pool in job.spec.get("pools") or ()}
        elsewhere = [unit.name for _, unit in job.view.status.elsewhere]
        pools = {unit.name: unit.pool for unit in job.view.status.units} | {name: name.rpartition("-")[0] for name in elsewhere}
        for unit in job.history.units.values():
            other = "units elsewhere" if unit.name in elsewhere else "units that left"
            seconds = kind_seconds.setdefault(kinds.get(pools.get(unit.name, ""), other), {})
            for span in unit.spans:
                if span.phase.use is not None:
                    seconds[span.phase.use] = seconds.get(span.phase.use, 0.0) + span.seconds
    return kind_seconds


def _table(first: str, rows: Sequence[tuple[Cell, Shares]], label: str, *, interruptions: Sequence[str] = ()) -> Iterator[Element]:
    known = [use for use in Use if any(shares.get(use) for _, shares in rows)]
    if not known:
        yield element("p", "Nothing is measured yet.", class_="soft")
        return
    head = [first, "", "UNIT TIME", *(use.value.upper() for use in known), *(["INTERRUPTIONS"] if interruptions else [])]
    table_rows: list[list[Cell]] = []
    for number, (name, shares) in enumerate(rows):
        total = sum(shares.values())
        cells = [f"{shares.get(use, 0.0) / total:.1%}" if total and shares.get(use) else NOTHING for use in known]
        table_rows.append([name, _bar(shares, total), duration(total), *cells, *interruptions[number : number + 1]])
    yield table(head, table_rows, label=label, texts=TEXTS)


def _bar(shares: Shares, total: float) -> Element:
    """Draw the shares in the colours of their phases. The table beside it has the numbers."""
    bar = element("svg", xmlns="http://www.w3.org/2000/svg", width=_WIDTH, height=12, viewBox=f"0 0 {_WIDTH:.0f} 12", aria_hidden="true")
    x = 0.0
    for use in Use:
        width = _WIDTH * shares.get(use, 0.0) / total if total else 0.0
        if width:
            bar.append(element("rect", x=x, y=0, width=width, height=12, fill=LOOKS[Phase(use.value)].colour))
        x += width
    return bar
