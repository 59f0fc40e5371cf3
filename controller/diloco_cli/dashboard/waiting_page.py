"""The page of waiting jobs: the main cause why each does not train with more units, and what would help. Pure.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from diloco_operator.api.names import JobKey

from diloco_cli.dashboard.facts import FleetFacts
from diloco_cli.dashboard.page import TEXTS, Page, job_link, moment
from diloco_cli.dominant import Cause, Dominant, dominant
from diloco_cli.html import Cell, notes, table
from diloco_cli.job_tables import NOTHING
from diloco_cli.svg import element
from diloco_cli.view_model import JobView
from diloco_cli.view_text import ordinal

_HEAD = ("JOB", "CAUSE", "SUBJECT", "REASON", "MESSAGE", "WHAT HELPS", "WAITS FOR", "PLACE")
_CONTENT = (Cause.OVER, Cause.NOTHING)
"""A job with one of these causes does not wait."""


def waiting_page(facts: FleetFacts, base: str) -> Page:
    rows = [list(_row(facts, view, main, base)) for view in facts.jobs if (main := dominant(view)).cause not in _CONTENT]
    content: list[Element] = [table(_HEAD, rows, label="Waiting", texts=TEXTS)] if rows else [element("p", "No job waits.", class_="soft")]
    return Page("Waiting", {"head": [element("h1", "Waiting"), *notes(facts.notes)], "jobs": content})


def _row(facts: FleetFacts, view: JobView, main: Dominant, base: str) -> Iterator[Cell]:
    yield job_link(base, view)
    yield main.cause.value
    yield main.subject or NOTHING
    yield main.reason or NOTHING
    yield main.evidence or view.why()
    yield main.next_step or NOTHING
    since = [pool.waiting_since for pool in view.status.pools if pool.waiting_since is not None]
    yield moment(min(since), "since") if since else NOTHING
    key: JobKey = view.namespace, view.name
    places = facts.places.get(key, {})
    yield ", ".join(f"{pool}: {ordinal(place.position)} of {place.of}" for pool, place in sorted(places.items())) or NOTHING
