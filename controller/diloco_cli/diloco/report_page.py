"""The report of a record: one HTML page that needs nothing else. Pure.

It is a tree of elements, so no text of the record can become markup; its policy forbids every request and script.

See docs/decisions/0217-record-of-a-run.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from statistics import median
from xml.etree.ElementTree import Element, tostring

from diloco.wording import loss_text
from diloco_local.record.effects import effects_of, tokens_sentence
from diloco_local.record.history import History, JobHistory, UnitHistory
from diloco_operator.api.phases import Phase

from diloco_cli.history_charts import MOST_ROWS, Chart, Draw, chart_svg, contributions, loss, steps, traffic, units, units_height
from diloco_cli.svg import element
from diloco_cli.view_text import count, duration

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --soft: #66707a; --line: #e3e6e9; --paper: #ffffff; --note: #fdf3d7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --soft: #9aa5af; --line: #343b43; --paper: #14181d; --note: #3a3015; }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Arial, sans-serif; }
main { max-width: 900px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 20px; margin: 36px 0 4px; overflow-wrap: anywhere; }
.soft { color: var(--soft); margin: 0 0 12px; overflow-wrap: anywhere; }
.claims { padding: 10px 14px; border-left: 4px solid #c4261d; margin: 12px 0; } .claims p { margin: 2px 0; }
.notes { padding: 8px 14px; background: var(--note); margin: 12px 0; } .notes p { margin: 2px 0; }
dl { display: flex; flex-wrap: wrap; gap: 8px 28px; margin: 14px 0; }
dt { color: var(--soft); font-size: 12px; } dd { margin: 0; font-size: 18px; }
svg { display: block; max-width: 100%; height: auto; margin: 6px 0; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; margin-top: 14px; }
th, td { padding: 4px 12px 4px 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; } th:first-child, td:first-child { text-align: left; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(history: History, remarks: Sequence[str]) -> str:
    """Return the page. `remarks`: what is missing in the record, in sentences."""
    names = ", ".join(job.title for job in history.jobs)
    title = f"Run of {names}" if names else "Run without a job"
    main = element("main", element("h1", title), _origin(history))
    notes = [*remarks, *_missing(history)]
    if notes:
        main.append(element("div", *(element("p", note) for note in notes), class_="notes"))
    for job in history.jobs:
        main.extend(_job(job))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", _STYLE),
    )
    html = element("html", head, element("body", main), lang="en")
    return "<!DOCTYPE html>\n" + tostring(html, encoding="unicode", method="html") + "\n"


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
    yield element("dl", *(element("div", element("dt", name), element("dd", value)) for name, value in _facts(job)))
    if job.faults:
        said = [*(effect.sentence() for effect in effects_of(job)), f"T{tokens_sentence(job)[1:]}"]
        yield element("div", *(element("p", f"{text}.") for text in said), class_="claims")
    for title, height, draw in _charts(job):
        yield chart_svg([(Chart(job, title, height, names_faults=draw is loss), draw)], f"{title} of {job.title} over time")
    if len(job.units) > MOST_ROWS:
        yield element("p", f"{len(job.units) - MOST_ROWS} units more have no row above.", class_="soft")
    yield element("div", _table(job), class_="table")


def _charts(job: JobHistory) -> list[tuple[str, float, Draw]]:
    return [
        ("Training loss", 190, loss),
        ("Units", units_height(job), units),
        ("Units in each merge", 110, contributions),
        ("Longest step", 130, steps),
        ("Exchanged", 110, traffic),
    ]


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


def _table(job: JobHistory) -> Element:
    rows = [job.units[name] for name in sorted(job.units)]
    phases = [phase for phase in _BADPUT if job.share(phase)]
    head = ["unit", "tokens", "steps", "median step", "longest", "recovered in", "sent", "received", "training", *phases]
    body = [element("tr", *(element("td", text) for text in _row(unit, phases))) for unit in rows]
    return element("table", element("thead", element("tr", *(element("th", text) for text in head))), element("tbody", *body))


def _row(unit: UnitHistory, phases: Sequence[Phase]) -> Iterator[str]:
    lengths = [gap.seconds / gap.steps for gap in unit.gaps]
    yield unit.name
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
