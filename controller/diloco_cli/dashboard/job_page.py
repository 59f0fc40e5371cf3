"""The page of a job: its progress, why it does not train with more units, its figures over time, and its units. Pure.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from xml.etree.ElementTree import Element

from diloco.wording import loss_text, plural
from diloco_operator.api.status import PartStatus

from diloco_cli.chart_style import UNIT_COLOURS
from diloco_cli.dashboard.facts import JobFacts, Sample
from diloco_cli.dashboard.page import TEXTS, Page, moment, reported_state, table_of, unit_path, unit_state
from diloco_cli.explanation import ends, explanation
from diloco_cli.history_charts import history_charts
from diloco_cli.html import Cell, figures, scrolled, table
from diloco_cli.job_tables import (
    NOTHING,
    conditions_table,
    elsewhere_table,
    hosts_table,
    part_costs_table,
    parts_table,
    pools_table,
    units_table,
)
from diloco_cli.plots import Axis, Line, Plot, Rule, Series, drawing
from diloco_cli.status_text import headline
from diloco_cli.svg import element, thinned
from diloco_cli.view_text import as_of, count, duration, goodput_lines

_HEIGHT = 250.0
_POINTS = 200
_MOST_ENDS = 100
_SOME_SECONDS = 5.0
"""Least time that charts show."""


def job_page(facts: JobFacts, base: str) -> Page:
    view = facts.view
    status = view.status
    return Page(
        f"{view.namespace}/{view.name}",
        {
            "head": [
                element("h1", view.name),
                element("p", f"namespace {view.namespace}. {headline(view)}", class_="soft"),
                _figures(facts),
            ],
            "now": list(_now(facts)),
            "loss": list(_loss(facts)),
            "observed": list(_observed(facts)),
            "timeline": list(_timeline(facts)),
            "units": [element("h2", "Units"), _units(facts, base)],
            "elsewhere": list(_elsewhere(facts)),
            "ends": list(ends_of(facts)),
            "pools": [element("h2", "Pools"), table_of(pools_table(status.pools), "Pools")],
            "parts": list(_parts(status.parts or ())),
            "hosts": [element("h2", "Hosts on which attempts failed"), table_of(hosts_table(status.hosts), "Hosts")]
            if status.hosts
            else [],
            "conditions": [element("h2", "Conditions"), table_of(conditions_table(status.conditions), "Conditions")],
        },
    )


def _parts(parts: Sequence[PartStatus]) -> Iterator[Element]:
    if parts:
        yield element("h2", "Parts in other clusters")
        yield table_of(parts_table(parts), "Parts")
        costs = part_costs_table(parts)
        if costs.rows:
            yield table_of(costs, "Links and accelerators of parts")


def _figures(facts: JobFacts) -> Element:
    view = facts.view
    progress, learners = view.status.progress, view.status.learners
    named: list[tuple[str, Cell]] = []
    if progress.steps:
        named.append(("outer step", f"{progress.step:,} of {progress.steps:,}"))
    if progress.loss is not None:
        named.append(("loss", loss_text(progress.loss, 5)))
    if progress.held_out_loss is not None:
        named.append(("held-out loss", loss_text(progress.held_out_loss, 5)))
    named += [("tokens", count(progress.tokens))]
    if not view.over:
        named += [("tokens/s", f"{count(progress.tokens_per_second)} {as_of(view.status, facts.now)}".rstrip())]
    named += [("units contribute", f"{learners.contributing} of {learners.desired}"), ("quorum", str(facts.quorum))]
    if progress.estimated_completion is not None and not view.over:
        named.append(("ends in", moment(progress.estimated_completion, "until")))
    return figures(named)


def _now(facts: JobFacts) -> Iterator[Element]:
    """Yield how the job ended or why it has not more units, what the user can do, and what happens by itself."""
    explained = explanation(facts.view, facts.spec, facts.events, {}, {})
    yield element("h2", "How it ended" if facts.view.over else "What keeps it from more")
    yield element("p", explained.answer)
    dominant = explained.dominant
    if dominant.evidence and dominant.evidence not in explained.answer:
        yield element("p", f"{dominant.subject}: {dominant.evidence}" if dominant.subject else dominant.evidence)
    if dominant.meaning:
        yield element("p", f"{dominant.reason}: {dominant.meaning}", class_="soft")
    if dominant.next_step:
        yield element("p", element("strong", "Next step: "), dominant.next_step)
    coming = [event for event in explained.upcoming if event.at > facts.now]
    if coming:
        yield element("p", element("strong", "By itself:"))
        yield element("ul", *(element("li", f"{event.what} in ", moment(event.at, "until")) for event in coming))


def _loss(facts: JobFacts) -> Iterator[Element]:
    progress = facts.view.status.progress
    training, held_out = progress.losses or (), progress.held_out_losses or ()
    if len(training) < 2:
        return
    values = [point.loss for point in (*training, *held_out)]
    low, high = min(values), max(values)
    room = (high - low) * 0.06 or max(abs(high), 1.0) / 10
    series = [Line("training loss", [(point.step, point.loss) for point in training], UNIT_COLOURS[0])]
    if held_out:
        series.append(Line("held-out loss", [(point.step, point.loss) for point in held_out], UNIT_COLOURS[1], marks=True))
    steps = Axis("outer step", training[0].step, max(training[-1].step, training[0].step + 1))
    yield element("h2", "Loss")
    plot = Plot("Loss over outer steps", steps, Axis("loss", low - room, high + room), series)
    yield scrolled([drawing(plot, height=_HEIGHT + 40)], "Loss")


def _observed(facts: JobFacts) -> Iterator[Element]:
    samples = facts.samples
    if not facts.followed:
        return
    yield element("h2", "As it was seen")
    if not samples or facts.now - samples[0].at < _SOME_SECONDS:
        yield element("p", "Charts begin when the job has been seen for some seconds.", class_="soft")
        return
    newest = samples[-1]
    samples = [*samples, newest._replace(at=max(newest.at, facts.now))]
    span = samples[-1].at - samples[0].at
    lasted = [(sample, following.at - sample.at) for sample, following in pairwise(samples)]
    wanted = sum(sample.desired * seconds for sample, seconds in lasted)
    share = sum(sample.contributing * seconds for sample, seconds in lasted) / wanted if wanted else 0.0
    yield element(
        "p",
        f"{newest.contributing} of {plural(newest.desired, 'unit reports', 'units report')}. Seen for {duration(span)} of the last hour, "
        f"in which {share:.0%} of the units contributed.",
        class_="soft",
    )
    most = max(max(sample.desired, sample.contributing, facts.quorum) for sample in samples)
    units: list[Series] = [
        Line("contribute", _line(samples, [sample.contributing for sample in samples]), UNIT_COLOURS[2]),
        Line("wanted", _line(samples, [sample.desired for sample in samples]), UNIT_COLOURS[7], dashes="4 3"),
        Rule("quorum", facts.quorum, UNIT_COLOURS[1]),
    ]
    speed = Line("", _line(samples, [sample.tokens_per_second for sample in samples]), UNIT_COLOURS[0])
    stale = Line("", _line(samples, [sample.stalest for sample in samples]), UNIT_COLOURS[3])
    plots = (
        Plot("Tokens/s", _minutes(span), _from_zero("tokens/s", speed, labelled=True), [speed]),
        Plot("Units that contribute", _minutes(span), Axis("units", 0, most * 1.1), units),
        Plot("Staleness of the stalest unit", _minutes(span), _from_zero("outer steps", stale), [stale]),
    )
    yield scrolled([drawing(*plots, height=_HEIGHT)], "As it was seen")


def _minutes(span: float) -> Axis:
    return Axis("minutes ago" if span >= 120 else "seconds ago", -span / 60 if span >= 120 else -span, 0)


def _line(samples: Sequence[Sample], values: Sequence[float]) -> list[tuple[float, float]]:
    """Each value stands until the next one."""
    span = samples[-1].at - samples[0].at
    points = [(sample.at - samples[0].at, float(value)) for sample, value in zip(samples, values, strict=True)]
    scale = 60 if span >= 120 else 1
    shown = [((at - span) / scale, value) for at, value in thinned(points, span, _POINTS, largest=False)]
    return [*shown[:1], *(point for (_, value), (at, then) in pairwise(shown) for point in ((at, value), (at, then)))]


def _from_zero(name: str, line: Line, *, labelled: bool = False) -> Axis:
    """An axis from 0 that has room for the line. `labelled` gives it short numbers, such as 41.6k."""
    high = max(10.0, 1.1 * max(value for _, value in line.points))
    axis = Axis(name, 0, high)
    return Axis(name, 0, high, labels=[(value, count(value)) for value, _ in axis.marks()]) if labelled else axis


def _timeline(facts: JobFacts) -> Iterator[Element]:
    if not any(unit.spans for unit in facts.history.units.values()):
        return
    yield element("h2", "Timeline")
    if not facts.view.over:
        yield element("p", "0:00 was ", moment(facts.now - facts.history.end, "since"), " ago.", class_="soft")
    yield scrolled(history_charts(facts.history), "Timeline")
    for line in goodput_lines(facts.view.status):
        yield element("p", f"{line}.", class_="soft")


def _units(facts: JobFacts, base: str) -> Element:
    view = facts.view
    units = view.status.units
    links = [element("a", unit.name, href=unit_path(base, view.namespace, view.name, unit.name)) for unit in units]
    return table_of(units_table(units), "Units", {"UNIT": links, "STATE": [unit_state(unit) for unit in units]})


def _elsewhere(facts: JobFacts) -> Iterator[Element]:
    shown = elsewhere_table(facts.view.status)
    if shown.rows:
        yield element("h2", "Units elsewhere")
        yield table_of(shown, "Units elsewhere", {"STATE": [reported_state(unit) for _, unit in facts.view.status.elsewhere]})


def ends_of(facts: JobFacts, unit: str = "") -> Iterator[Element]:
    """Yield a table of the attempts that ended and why. `unit` is "" for all units."""
    attempt_ends = [(name, end) for name, end in ends(facts.view.status.units, facts.events) if unit in ("", name)]
    if not attempt_ends:
        return
    yield element("h2", "Attempts that ended")
    rows: list[list[Cell]] = [
        [moment(end.at, "since") if end.at is not None else NOTHING, name, end.reason or NOTHING, end.message]
        for name, end in attempt_ends[:_MOST_ENDS]
    ]
    yield table(("AGO", "UNIT", "REASON", "MESSAGE"), rows, label="Attempts that ended", texts=TEXTS)
    if len(attempt_ends) > _MOST_ENDS:
        yield element("p", f"{len(attempt_ends) - _MOST_ENDS} earlier ones are not shown.", class_="soft")
