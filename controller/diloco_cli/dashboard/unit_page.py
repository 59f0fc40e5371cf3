"""The page of a unit: its state, its speed compared with its pool, its timeline, and how its attempts ended. Pure.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from xml.etree.ElementTree import Element

from diloco.wording import plural
from diloco_operator.api.status import UnitState, UnitStatus
from diloco_operator.fleet.slices import GROUP_SEPARATOR

from diloco_cli.dashboard.facts import JobFacts
from diloco_cli.dashboard.job_page import ends_of
from diloco_cli.dashboard.page import TEXTS, Page, host_path, job_path, moment, table_of, unit_state
from diloco_cli.dashboard.unit_pods import LOG_LINES, UnitPods, ranks_text, waited_for
from diloco_cli.history_charts import history_charts
from diloco_cli.html import Cell, figures, scrolled, table
from diloco_cli.job_tables import NOTHING, hosts_table
from diloco_cli.svg import element
from diloco_cli.view_text import count, figure_cells, figure_headings


def unit_page(facts: JobFacts, name: str, pods: UnitPods | None, base: str) -> Page | None:
    """The page, or None if the job has no such unit. `pods` is None if they have not been read yet."""
    view = facts.view
    unit = view.status.unit(name)
    if unit is None:
        return None
    job = element("a", view.name, href=job_path(base, view.namespace, view.name))
    places = unit.slice.split(GROUP_SEPARATOR) if unit.slice else []
    hosts = [host for host in view.status.hosts if host.node in places or any(failure.unit == name for failure in host.failures)]
    return Page(
        f"{view.namespace}/{view.name} {name}",
        {
            "head": [
                element("h1", name),
                element("p", "unit of ", job, f", namespace {view.namespace}", class_="soft"),
                _figures(facts, unit),
            ],
            "now": list(_now(unit)),
            "ranks": list(ranks(facts, unit, pods, base)),
            "timeline": list(_timeline(facts, unit)),
            "ends": list(ends_of(facts, name)),
            "log": list(log(facts, unit, pods)),
            "totals": [element("h2", "Its share and totals"), _totals(unit)],
            "hosts": [element("h2", "Hosts on which attempts failed"), table_of(hosts_table(hosts), "Hosts")] if hosts else [],
        },
    )


def _figures(facts: JobFacts, unit: UnitStatus) -> Element:
    named: list[tuple[str, Cell]] = [("state", unit_state(unit))]
    if unit.since is not None:
        named.append(("since", moment(unit.since, "since")))
    named += [("slice", unit.slice or NOTHING), ("attempt", str(unit.attempt)), ("restarts", str(unit.restarts))]
    if unit.state is UnitState.TRAINING:
        named += [("tokens/s", count(unit.tokens_per_second)), *_norm(facts, unit)]
    return figures(named)


def _norm(facts: JobFacts, unit: UnitStatus) -> Iterator[tuple[str, Cell]]:
    """Yield the unit's speed as a share of the pool's other units now, and of the pool's measured mean."""
    others = [
        other.tokens_per_second
        for other in facts.view.status.units
        if other.pool == unit.pool and other.name != unit.name and other.state is UnitState.TRAINING and other.tokens_per_second
    ]
    if others:
        yield "of the pool's other units", f"{unit.tokens_per_second / median(others):.0%}"
    measured = next((pool.tokens_per_second for pool in facts.view.status.pools if pool.name == unit.pool), None)
    if measured:
        yield "of the pool's mean", f"{unit.tokens_per_second / measured:.0%}"


def _now(unit: UnitStatus) -> Iterator[Element]:
    if unit.reason or unit.message:
        yield element("h2", "Why it is in this state")
        yield element("p", element("strong", unit.reason), f": {unit.message}" if unit.message else "")
    if unit.not_before is not None and unit.state in (UnitState.PENDING, UnitState.BACKING_OFF):
        yield element("p", element("strong", "By itself: "), "it may start again in ", moment(unit.not_before, "until"))
    if unit.began_with:
        yield element("p", element("strong", "Its last start: "), unit.began_with, class_="soft")
    if unit.recover_seconds is not None:
        yield element("p", f"It came back within {unit.recover_seconds:.1f} s after its last loss.", class_="soft")


def _timeline(facts: JobFacts, unit: UnitStatus) -> Iterator[Element]:
    history = facts.history
    unit_history = history.units.get(unit.name)
    if unit_history is None or not unit_history.spans:
        return
    faults = [fault for fault in history.faults if fault.unit == unit.name]
    yield element("h2", "Timeline")
    yield element("p", "0:00 was ", moment(facts.now - history.end, "since"), " ago.", class_="soft")
    charts = history_charts(replace(history, units={unit.name: unit_history}, merges=[], traffic=[], faults=faults))
    yield scrolled(charts, "Timeline")


def _totals(unit: UnitStatus) -> Element:
    """The figures of tables of units, without those at the head of the page. Sums are over all attempts of the unit."""
    named = {
        **dict(zip(figure_headings(), figure_cells(unit), strict=True)),
        **dict(zip(figure_headings(wide=True), figure_cells(unit, wide=True), strict=True)),
    }
    named.pop("TOKENS/S")
    return figures([(heading.lower(), f"{int(text):,}" if text.isdecimal() else text) for heading, text in named.items()])


# ----------------------------------------------------------------------------------------------------------------------
# What the page shows of the unit's pods: hosts and ranks, for which hosts the others wait, and the end of a log.
_RANKS_HEAD = ("HOST", "RANKS", "STATE", "SINCE", "RESTARTS", "NODE", "POD", "MESSAGE")


def ranks(facts: JobFacts, unit: UnitStatus, pods: UnitPods | None, base: str) -> Iterator[Element]:
    """Yield the hosts of the unit with their ranks, and tell for which hosts the others wait."""
    if pods is None or not pods.hosts:
        return
    view, hosts = facts.view, pods.hosts
    per_host = facts.ranks_per_host(unit.pool)
    yield element("h2", "Hosts and ranks")
    attempt = f"Attempt {hosts[0].attempt}: {plural(len(hosts), 'host')}, {plural(len(hosts) * per_host, 'rank')}."
    yield element("p", attempt, class_="soft")
    waits = waited_for(hosts)
    if waits:
        named = ", ".join(f"{host.index} (ranks {ranks_text(host.index, per_host)})" for host in waits)
        hosts_text = f"host{'' if len(waits) == 1 else 's'} {named}"
        yield element("p", element("strong", f"The others wait for {hosts_text} to run."), " A unit trains once all of its ranks have met.")
    rows: list[list[Cell]] = [
        [
            element("a", str(host.index), href=host_path(base, view.namespace, view.name, unit.name, host.index)),
            ranks_text(host.index, per_host),
            f"{host.state}: the others wait" if host in waits else host.state,
            moment(host.since, "since") if host.since is not None else NOTHING,
            str(host.restarts),
            host.node or NOTHING,
            host.pod,
            host.message or NOTHING,
        ]
        for host in hosts
    ]
    yield table(_RANKS_HEAD, rows, label="Hosts and ranks", texts=TEXTS)


def log(facts: JobFacts, unit: UnitStatus, pods: UnitPods | None) -> Iterator[Element]:
    """Yield the end of the log of one host, and the command that prints all of it."""
    if not facts.followed and (pods is None or not (pods.log or pods.note)):
        return
    yield element("h2", f"Log of host {pods.shown}" if pods is not None and pods.hosts else "Log")
    if pods is None:
        yield element("p", "It is being read.", class_="soft")
        return
    if pods.note:
        yield element("p", pods.note)
    if pods.log:
        yield element("pre", element("code", pods.log), class_="log", tabindex="0", role="region", aria_label="Log")
    host = f" --host {pods.shown}" if len(pods.hosts) > 1 else ""
    command = element("code", f"kubectl diloco logs {facts.view.name} {unit.name}{host} -n {facts.view.namespace}")
    yield element("p", f"The last {LOG_LINES} lines at most. All of it: ", command, class_="soft")
