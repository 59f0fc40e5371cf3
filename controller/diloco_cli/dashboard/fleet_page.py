"""The page of the fleet: all jobs, how much hardware of each kind they have, and quotas. Pure.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from diloco_operator.api.state import JobState

from diloco_cli.dashboard.facts import FleetFacts, SliceNumbers, SlicePlace
from diloco_cli.dashboard.page import TEXTS, Page, job_path, table_of
from diloco_cli.dashboard.quotas import Allowance
from diloco_cli.html import Cell, figures, notes, table
from diloco_cli.job_tables import NOTHING, jobs_table
from diloco_cli.svg import element
from diloco_cli.view_text import count


def fleet_page(facts: FleetFacts, base: str) -> Page:
    return Page(
        "Fleet",
        {
            "summary": [element("h1", "Fleet"), *notes(facts.notes), _summary(facts)],
            "jobs": [element("h2", "Jobs"), *_jobs(facts, base)],
            "hardware": [element("h2", "Hardware by failure domain"), *_hardware(facts)],
            "quotas": [element("h2", "Quota"), *_quotas(facts.quotas)] if facts.quotas else [],
        },
    )


def _summary(facts: FleetFacts) -> Element:
    contributing = sum(view.status.learners.contributing for view in facts.jobs)
    desired = sum(view.status.learners.desired for view in facts.jobs)
    jobs_in = Counter(view.state for view in facts.jobs)
    named: list[tuple[str, Cell]] = [(f"jobs: {state.value}", str(jobs_in[state])) for state in JobState if jobs_in[state]]
    speed = sum(view.status.progress.tokens_per_second for view in facts.jobs if not view.over)
    return figures([*named, ("units contribute", f"{contributing} of {desired}"), ("tokens/s", count(speed))])


def _jobs(facts: FleetFacts, base: str) -> Iterator[Element]:
    if facts.jobs:
        links = [element("a", view.name, href=job_path(base, view.namespace, view.name)) for view in facts.jobs]
        yield table_of(jobs_table(facts.jobs, facts.now), "Jobs", {"JOB": links})
    else:
        yield element("p", "There are no jobs.", class_="soft")


def _hardware(facts: FleetFacts) -> Iterator[Element]:
    slices = facts.slices
    yield from notes(facts.unseen)
    if not slices:
        text = "You may not list the nodes." if slices is None else "No node has accelerators of the catalogue."
        yield element("p", text, class_="soft")
        return
    zones = sorted({place.zone for place in slices})
    head = ["KIND", *(zone or "no zone" for zone in zones)]
    kinds = sorted({place.kind for place in slices})
    rest = "what the others are" if facts.sees_others else "what is known of the others, which pods of others may use"
    text = f"In each cell: slices that the jobs above have, of all slices; then {rest}. Avoided: attempts failed on one of its hosts."
    yield element("p", text, class_="soft")
    yield table(
        head,
        [[kind, *(_numbers(slices.get(SlicePlace(kind, zone)), facts.sees_others) for zone in zones)] for kind in kinds],
        label="Slices",
        texts={**TEXTS, **dict.fromkeys(head[1:], TEXTS["STATE"])},
    )


def _numbers(numbers: SliceNumbers | None, sees_others: bool) -> str:
    if numbers is None:
        return NOTHING
    free = numbers.free if sees_others else 0
    named = [(free, "free"), (numbers.others, "in other use"), (numbers.unusable, "not usable"), (numbers.avoided, "avoided")]
    return ", ".join([f"{numbers.used} of {numbers.total}", *(f"{number} {what}" for number, what in named if number)])


_MOST_QUOTAS = 100


def _quotas(allowances: Sequence[Allowance]) -> Iterator[Element]:
    rows = [
        [
            allowance.quota,
            allowance.flavor or NOTHING,
            allowance.resource,
            allowance.used,
            allowance.allowed,
            NOTHING if allowance.waiting is None else str(allowance.waiting),
        ]
        for allowance in allowances[:_MOST_QUOTAS]
    ]
    yield table(("QUOTA", "FLAVOR", "RESOURCE", "USED", "ALLOWED", "WORKLOADS THAT WAIT"), rows, label="Quota", texts=TEXTS)
    if len(allowances) > _MOST_QUOTAS:
        yield element("p", f"{len(allowances) - _MOST_QUOTAS} more are not shown.", class_="soft")
