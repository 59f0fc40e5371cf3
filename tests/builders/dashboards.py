"""What the pages of the dashboard show, and dashboards that are served, so that a test reads as a sentence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientResponse, ClientSession
from builders.cluster_scenes import NOW, SINCE
from builders.jobs import a_job
from builders.pod_logs import Logs
from diloco_cli.dashboard.facts import JobFacts, Sample
from diloco_cli.dashboard.page import Page, Rendered
from diloco_cli.dashboard.server import serving
from diloco_cli.pod_logs import PodLogs
from diloco_cli.view_model import JobView
from diloco_local.record.lines import JobSeen
from diloco_local.record.live import LiveHistory, before
from diloco_operator.kube.client import Client, Obj

HOSTILE = "</td></svg><script>alert(1)</script>&<img src=x onerror='alert(2)'>\x00\x1b"


def a_view(**status: Any) -> JobView:
    """Return the job `bytes-lm` of namespace `team` with this status."""
    job = a_job().with_pool().build()
    return JobView.of({**job, "status": {"state": "Training", **status}})


def job_facts(
    view: JobView, *, events: Sequence[Obj] = (), samples: Sequence[Sample] = (), spec: Mapping[str, Any] | None = None
) -> JobFacts:
    """Return the job as a page gets it, a minute after all units have entered their states."""
    name = f"{view.namespace}/{view.name}"
    live = LiveHistory(name)
    live.add(*before(name, view.status), JobSeen(at=NOW - 60, job=name, state="Training", steps=100))
    return JobFacts(view, spec or {"training": {"quorum": 2}}, events, samples, live.history(NOW), NOW)


def html_of(page: Page) -> str:
    """Return all sections of a page."""
    return "".join(Rendered.of(page).sections.values())


def condition(kind: str, status: str = "True", reason: str = "", message: str = "") -> Obj:
    """Return one condition of a job."""
    return {"type": kind, "status": status, "reason": reason or kind, "message": message, "lastTransitionTime": SINCE}


@dataclass(frozen=True)
class Browser:
    """A client of a dashboard that is served."""

    session: ClientSession
    url: str
    """With the token."""

    async def get(self, path: str = "", **headers: str) -> ClientResponse:
        """Ask for a page by its path below the token, or for a whole URL."""
        return await self.session.get(path if path.startswith("http") else f"{self.url}{path}", headers=headers)


@asynccontextmanager
async def a_dashboard(client: Client, namespace: str = "", logs: PodLogs | None = None) -> AsyncIterator[Browser]:
    """Serve the dashboard of a cluster whose pods have these logs, and read its pages."""
    async with serving(client, logs or Logs(), namespace) as served, ClientSession() as session:
        yield Browser(session, served.url)
