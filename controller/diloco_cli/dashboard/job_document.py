"""The pages of a job and of its units, for a file. Pure.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from diloco_local.record.lines import JobSeen
from diloco_local.record.live import LiveHistory, before
from diloco_operator.kube.client import Obj

from diloco_cli.dashboard.document import BASE, Placed
from diloco_cli.dashboard.facts import JobFacts
from diloco_cli.dashboard.goodput_page import goodput_page
from diloco_cli.dashboard.job_page import job_page
from diloco_cli.dashboard.page import job_path, unit_path
from diloco_cli.dashboard.unit_page import unit_page
from diloco_cli.dashboard.unit_pods import UnitPods
from diloco_cli.view_model import JobView


def facts_of(obj: Obj, events: Sequence[Obj], now: float) -> JobFacts:
    """Facts from one look at a job."""
    view = JobView.of(obj)
    name = f"{view.namespace}/{view.name}"
    live = LiveHistory(name)
    state = view.state.value if view.state is not None else ""
    live.add(*before(name, view.status), JobSeen(at=now, job=name, state=state, steps=view.status.progress.steps))
    return JobFacts(view, obj["spec"], events, (), live.history(now), now, followed=False)


def job_pages(facts: JobFacts, pods: Mapping[str, UnitPods]) -> Iterator[Placed]:
    """Yield the page of the job, then the pages of its units. `pods` has the units whose pods were read."""
    view = facts.view
    yield Placed(job_path("", view.namespace, view.name), job_page(facts, BASE), view.name)
    for unit in view.status.units:
        page = unit_page(facts, unit.name, pods.get(unit.name), BASE)
        if page is not None:
            yield Placed(unit_path("", view.namespace, view.name, unit.name), page)


def goodput_of(facts: JobFacts) -> Placed:
    return Placed("/goodput", goodput_page([facts], (), BASE), "Goodput")
