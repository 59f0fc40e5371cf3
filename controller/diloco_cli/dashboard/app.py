"""The web application: pages by their paths, and their updates as server-sent events.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Protocol
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from diloco_cli.dashboard.facts import FleetFacts, JobFacts
from diloco_cli.dashboard.fleet_page import fleet_page
from diloco_cli.dashboard.goodput_page import goodput_page
from diloco_cli.dashboard.guard import Guard
from diloco_cli.dashboard.job_page import job_page
from diloco_cli.dashboard.page import NOTICE, STYLE, Page, Rendered, frame
from diloco_cli.dashboard.unit_page import unit_page
from diloco_cli.dashboard.unit_pods import UnitPods
from diloco_cli.dashboard.updates import TooManyStreams, Updates
from diloco_cli.dashboard.waiting_page import waiting_page
from diloco_cli.html import notes

_EVENTS = "text/event-stream"
_DIGITS = 7


class Facts(Protocol):
    """What pages show. `source.Source` implements it."""

    def fleet(self) -> FleetFacts:
        """Facts for pages about more than one job."""
        ...

    def job(self, namespace: str, name: str) -> JobFacts | None:
        """Facts about a job, or None if there is no such job."""
        ...

    def jobs(self) -> Sequence[JobFacts]:
        """Facts about all jobs, sorted by namespace and name."""
        ...

    def stale(self) -> Sequence[str]:
        """Sentences that say since when nothing new could be read. Empty if all is of now."""
        ...

    def pods(self, namespace: str, name: str, unit: str, host: int | None) -> UnitPods | None:
        """The pods of a unit, with the end of the log of a host (None for the first). Returns None if they have not been read yet."""
        ...


class Pages:
    """Makes the page for a path below `base`."""

    def __init__(self, facts: Facts, base: str) -> None:
        self._facts = facts
        self.base = base

    def page(self, path: str) -> Page | None:
        """None if there is no such page."""
        page = self._page(path)
        return page and replace(page, sections={NOTICE: notes(self._facts.stale()), **page.sections})

    def _page(self, path: str) -> Page | None:
        match [unquote(part) for part in path.split("/")]:
            case ["", ""]:
                return fleet_page(self._facts.fleet(), self.base)
            case ["", "waiting"]:
                return waiting_page(self._facts.fleet(), self.base)
            case ["", "goodput"]:
                return goodput_page(self._facts.jobs(), self._facts.fleet().notes, self.base)
            case ["", "jobs", namespace, name]:
                job = self._facts.job(namespace, name)
                return job_page(job, self.base) if job is not None else None
            case ["", "jobs", namespace, name, "units", unit]:
                return self._unit(namespace, name, unit, None)
            case ["", "jobs", namespace, name, "units", unit, "hosts", host] if host.isdecimal() and len(host) < _DIGITS:
                return self._unit(namespace, name, unit, int(host))
            case _:
                return None

    def _unit(self, namespace: str, name: str, unit: str, host: int | None) -> Page | None:
        job = self._facts.job(namespace, name)
        if job is None or not any(status.name == unit for status in job.view.status.units):
            return None
        return unit_page(job, unit, self._facts.pods(namespace, name, unit, host), self.base)

    def sections(self, path: str) -> Mapping[str, str]:
        """HTML of each section. If there is no such page any more, the one that says so: the others stay as they were."""
        page = self.page(path) or Page("", {NOTICE: notes(["This is no longer there: the page shows it as it was."])})
        return Rendered.of(page).sections


def application(pages: Pages, updates: Updates, token: str, port: int) -> ASGIApp:
    """Make the application. It only answers requests with the token, for this port of this machine."""

    async def show(request: Request) -> Response:
        path = request.scope["raw_path"].decode("ascii").partition("?")[0].removeprefix(pages.base)
        page = pages.page(path)
        if page is None:
            return PlainTextResponse("There is no such page: the job may have been deleted.\n", status_code=404)
        if request.headers.get("accept") != _EVENTS:
            return HTMLResponse(frame(page, pages.base, path))
        stream = updates.stream(path)
        try:
            first = await anext(stream)
        except TooManyStreams:
            return PlainTextResponse("Too many pages are open: close some.\n", status_code=503)
        return StreamingResponse(_from(first, stream), media_type=_EVENTS)

    routes = [
        Route("/{token}/static/dashboard.css", _static(lambda: STYLE, "text/css")),
        Route("/{token}/static/dashboard.js", _static(_script, "text/javascript")),
        Route("/{token}/{path:path}", show),
    ]
    return Guard(Starlette(routes=routes), token, port)


async def _from(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for event in rest:
        yield event


def _script() -> str:
    return files("diloco_cli.dashboard").joinpath("static", "dashboard.js").read_text(encoding="utf-8")


def _static(text: Callable[[], str], kind: str) -> Callable[[Request], Response]:
    def answer(_request: Request) -> Response:
        return Response(text(), media_type=kind)

    return answer
