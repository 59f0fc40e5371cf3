"""What the page of a unit shows of its pods: hosts and ranks, for which of them the others wait, and the end of a log. Pure.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from diloco.wording import plural
from diloco_operator.api.status import UnitStatus

from diloco_cli.dashboard.facts import JobFacts
from diloco_cli.dashboard.page import TEXTS, host_path, moment
from diloco_cli.dashboard.unit_pods import LOG_LINES, UnitPods, ranks_text, waited_for
from diloco_cli.html import Cell, table
from diloco_cli.job_tables import NOTHING
from diloco_cli.svg import element

_HEAD = ("HOST", "RANKS", "STATE", "SINCE", "RESTARTS", "NODE", "POD", "MESSAGE")


def ranks(facts: JobFacts, unit: UnitStatus, pods: UnitPods | None, base: str) -> Iterator[Element]:
    """Yield the hosts of the unit with their ranks, and for which of them the others wait."""
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
        some = f"host{'' if len(waits) == 1 else 's'} {named}"
        yield element("p", element("strong", f"The others wait for {some} to run."), " A unit trains once all of its ranks have met.")
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
    yield table(_HEAD, rows, label="Hosts and ranks", texts=TEXTS)


def log(facts: JobFacts, unit: UnitStatus, pods: UnitPods | None) -> Iterator[Element]:
    """Yield the end of the log of one host, and how to have all of it."""
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
