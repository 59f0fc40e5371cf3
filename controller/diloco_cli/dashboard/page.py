"""A page of the dashboard: a frame that stays, and sections in it that are replaced one by one when they change. Pure.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote
from xml.etree.ElementTree import Element

from diloco_local.record.elsewhere import of_status
from diloco_operator.api.phases import Phase
from diloco_operator.api.status import ReportedUnit, UnitStatus
from diloco_operator.reconcile.units.states import phase_of

from diloco_cli.chart_style import STYLE as CHART_STYLE
from diloco_cli.html import STYLE as PAGE_STYLE
from diloco_cli.html import Cell, document, markup, table
from diloco_cli.job_tables import NOT_JOINED, Since, Table, Until, Value
from diloco_cli.phase_looks import LOOKS
from diloco_cli.svg import element
from diloco_cli.view_model import JobView

STYLE: Final = (
    PAGE_STYLE
    + CHART_STYLE
    + """
main { max-width: 1180px; } a { color: var(--link); }
a:focus-visible, .table:focus-visible, .charts:focus-visible { outline: 2px solid var(--link); }
nav { display: flex; flex-wrap: wrap; gap: 4px 20px; padding: 10px 20px; border-bottom: 1px solid var(--line); }
nav a[aria-current] { color: var(--ink); font-weight: 600; text-decoration: none; }
#connection { margin-left: auto; color: var(--soft); } #connection.lost { color: var(--ink); background: var(--note); padding: 0 8px; }
th.text, td.text { text-align: left; }
th.words, td.words { text-align: left; white-space: normal; min-width: 16em; overflow-wrap: anywhere; }
th.names, td.names { text-align: left; white-space: normal; min-width: 8em; overflow-wrap: anywhere; }
svg.chart { width: 100%; max-width: 980px; } .charts { overflow-x: auto; }
td { vertical-align: top; } td.name { overflow-wrap: anywhere; }
.state { white-space: nowrap; } .state svg { display: inline-block; margin: 0 6px 0 0; vertical-align: baseline; }
section { margin: 0; } h2 { font-size: 17px; margin-top: 26px; }
pre.log { max-height: 30em; overflow: auto; padding: 10px 12px; border: 1px solid var(--line); font-size: 12px; line-height: 1.4;
  display: flex; flex-direction: column-reverse; } pre.log:focus-visible { outline: 2px solid var(--link); }
pre.log code { white-space: pre-wrap; overflow-wrap: anywhere; }
p code { font-size: 13px; overflow-wrap: anywhere; }
ul { padding-left: 20px; margin: 6px 0; } li { overflow-wrap: anywhere; }
@media (max-width: 640px) {
  .charts svg.chart { min-width: 680px; }
  td.name { white-space: normal; min-width: 11em; } td.words { min-width: 22em; }
}
"""
)


NOTICE: Final = "notice"
"""The section of every page that says why the others are not of now. Empty if they are. The script of the pages looks at it."""


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a page. `sections` are keyed by id, in the order in which they are shown."""

    title: str
    sections: Mapping[str, Sequence[Element]]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A page whose sections are HTML."""

    title: str
    sections: Mapping[str, str]

    @classmethod
    def of(cls, page: Page) -> Rendered:
        return cls(page.title, {key: "".join(markup(part) for part in parts) for key, parts in page.sections.items()})


def version(html: str) -> str:
    """A digest, with which the browser tells whether a section has changed."""
    return hashlib.blake2b(html.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Link:
    """An entry of the navigation."""

    path: str
    """The path below the base."""
    name: str


LINKS: Sequence[Link] = (Link("/", "Fleet"), Link("/waiting", "Waiting"), Link("/goodput", "Goodput"))


def frame(page: Page, base: str, path: str) -> str:
    """The whole page as HTML. Every path begins with `base`, which includes the token. `path` is this page's."""
    links = [
        element("a", link.name, href=f"{base}{link.path}", **({"aria_current": "page"} if link.path == path else {})) for link in LINKS
    ]
    state = element("span", "", id="connection", role="status")
    rendered = Rendered.of(page).sections
    sections = [element("section", *parts, id=key, data_version=version(rendered[key])) for key, parts in page.sections.items()]
    head = [
        element("link", rel="stylesheet", href=f"{base}/static/dashboard.css"),
        element("script", src=f"{base}/static/dashboard.js", defer="defer"),
        element("link", rel="icon", href="data:,"),
    ]
    return document(f"{page.title} - DiLoCo", head, [element("nav", *links, state, aria_label="Pages"), element("main", *sections)])


def job_path(base: str, namespace: str, name: str) -> str:
    return f"{base}/jobs/{quote(namespace, safe='')}/{quote(name, safe='')}"


def job_link(base: str, view: JobView) -> Element:
    name = view.name if view.namespace == "default" else f"{view.namespace}/{view.name}"
    return element("a", name, href=job_path(base, view.namespace, view.name))


def unit_path(base: str, namespace: str, job: str, unit: str) -> str:
    return f"{job_path(base, namespace, job)}/units/{quote(unit, safe='')}"


def host_path(base: str, namespace: str, job: str, unit: str, host: int) -> str:
    """The path of a unit's page that shows the log of this host."""
    return f"{unit_path(base, namespace, job, unit)}/hosts/{host}"


# --- parts of pages -----------------------------------------------------------------------------------------------------
def moment(at: float, kind: str) -> Element:
    """A time in seconds since the epoch. The browser shows how long ago it is (`since`), or how long until then (`until`)."""
    when = datetime.fromtimestamp(at, UTC)
    return element("time", when.strftime("%Y-%m-%d %H:%M:%S UTC"), datetime=when.isoformat(timespec="seconds"), data_kind=kind)


def cell(value: Value) -> Cell:
    match value:
        case Since(at):
            return moment(at, "since")
        case Until(at):
            return moment(at, "until")
        case str():
            return value


_NAME, _TEXT, _NAMES, _WORDS = "name", "text", "names", "words"
TEXTS: Mapping[str, str] = {
    **dict.fromkeys(("NAMESPACE", "QUOTA", "KIND"), _NAME),
    **dict.fromkeys(
        ("JOB", "STATE", "STATUS", "REASON", "UNIT", "CAUSE", "CLUSTER", "ACCELERATOR", "POD", "NODE", "RANKS", "FLAVOR", "RESOURCE"), _TEXT
    ),
    **dict.fromkeys(("SLICE", "SUBJECT", "PLACE"), _NAMES),
    **dict.fromkeys(("MESSAGE", "WHY", "WHY NOT MORE", "LAST FAILURE", "WHAT HELPS"), _WORDS),
}
"""CSS class of each column without numbers, by heading: `name` for the name that a row begins with, `text` for short texts, `names` for
lists of names, `words` for sentences. Lists and sentences wrap; the name of a row wraps only on a narrow screen."""


def table_of(shown: Table, label: str, instead: Mapping[str, Sequence[Cell]] | None = None) -> Element:
    """Render a table. `instead` replaces the cells of some columns, by heading."""
    columns = dict(instead or {})
    rows = [
        [columns[name][number] if name in columns else cell(value) for name, value in zip(shown.head, row, strict=True)]
        for number, row in enumerate(shown.rows)
    ]
    return table(shown.head, rows, label=label, texts=TEXTS)


def unit_state(unit: UnitStatus) -> Element:
    """The state of a unit, with a mark in the colour of its phase."""
    return _state(unit.state.value, phase_of(unit))


def reported_state(unit: ReportedUnit) -> Cell:
    """The same of a unit elsewhere."""
    seen = of_status(unit)
    return _state(seen.state.value, seen.phase) if seen is not None else unit.state or NOT_JOINED


def _state(state: str, phase: Phase) -> Element:
    box = element("rect", width=10, height=10, rx=2, fill=LOOKS[phase].colour)
    mark = element("svg", box, xmlns="http://www.w3.org/2000/svg", width=10, height=10, viewBox="0 0 10 10", aria_hidden="true")
    return element("span", mark, state, class_="state", title=phase.value)
