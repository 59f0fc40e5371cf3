"""Until when a node lives: announced ends, limited run times, flex-start capacity, maintenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from builders.nodes import READY_SINCE, a_tpu_node, an_inventory
from diloco_operator.fleet import Shape, project_node
from diloco_operator.fleet.lifetime import LifetimeSignals, end_of_life
from diloco_operator.kube.timestamps import format_timestamp, parse_timestamp

MAINTENANCE = "cloud.google.com/scheduled-maintenance-time"
ENDS = "node.gke.io/machine-termination-datetime"
RUNS = "cloud.google.com/gke-max-run-duration-seconds"
FLEX = {"cloud.google.com/gke-flex-start": "true"}
DAY = 86400.0
SHAPE = Shape("tpu-v5p", "2x2x1", 4)
START = parse_timestamp(READY_SINCE)


def after(seconds: float) -> str:
    """So long after the nodes were created."""
    return format_timestamp(START + seconds)


def maintained(seconds: float) -> dict[str, Any]:
    """Fields of a node whose maintenance begins so long after the nodes were created."""
    return {"labels": {MAINTENANCE: str(round(START + seconds))}}


# Both leads are 300 s.
@pytest.mark.parametrize(
    ("labels", "annotations", "end"),
    [
        (FLEX, {}, 7 * DAY),
        ({"cloud.google.com/gke-provisioning": "flex-start"}, {}, 7 * DAY),
        ({**FLEX, RUNS: "3600"}, {}, 3600.0),
        ({RUNS: "3600"}, {}, 3600.0),
        ({RUNS: "3600"}, {ENDS: after(1800)}, 1800.0),
        (FLEX, {ENDS: after(8 * DAY)}, 8 * DAY),  # what is said of this node outweighs what holds for all
        ({RUNS: "7200"}, {ENDS: "2026-11-20T04:00:00.000-08:00"}, 3600.0),  # as Compute Engine writes it, with an offset
    ],
)
def test_end_comes_from_the_annotation_the_run_time_or_the_kind_of_capacity(
    labels: Mapping[str, str], annotations: Mapping[str, str], end: float
) -> None:
    fleet = an_inventory(a_tpu_node("tpu-0", labels=labels, annotations=annotations, created=after(0)))
    fleet.advance(START + end - 301)
    assert [part.name for part in fleet.free(SHAPE)] == ["tpu-0"]
    assert fleet.advance(START + end - 300) == ["tpu-0"]
    assert list(fleet.free(SHAPE)) == []


@pytest.mark.parametrize(
    ("labels", "annotations"),
    [
        ({}, {}),
        ({"cloud.google.com/gke-spot": "true"}, {}),
        ({"cloud.google.com/gke-flex-start": "false"}, {}),
        ({RUNS: "soon"}, {}),
        ({RUNS: "-1"}, {}),
        ({RUNS: "0"}, {}),
        ({RUNS: "\u0663"}, {}),
        ({RUNS: "9" * 400}, {}),
        ({}, {ENDS: "soon"}),
        ({}, {ENDS: "2026-11-20T12:00:00"}),
        ({}, {ENDS: "9" * 400}),
        ({}, {ENDS: ""}),
    ],
)
def test_node_that_does_not_say_when_it_ends_is_used_for_good(labels: Mapping[str, str], annotations: Mapping[str, str]) -> None:
    fleet = an_inventory(a_tpu_node("tpu-0", labels=labels, annotations=annotations, created=after(0)))
    fleet.advance(START + 1000 * DAY)
    assert [part.name for part in fleet.free(SHAPE)] == ["tpu-0"]


def test_flex_start_node_without_a_readable_announcement_ends_as_its_kind_does() -> None:
    fleet = an_inventory(a_tpu_node("tpu-0", labels=FLEX, annotations={ENDS: "soon"}, created=after(0)))
    assert fleet.advance(START + 7 * DAY) == ["tpu-0"]


def test_node_whose_maintenance_is_far_off_is_used_and_one_that_is_near_is_not() -> None:
    fleet = an_inventory(a_tpu_node("far", **maintained(10_000)), a_tpu_node("near", **maintained(100)))
    fleet.advance(START)
    assert [part.name for part in fleet.free(SHAPE)] == ["far"]
    assert fleet.advance(START + 9_699) == []
    assert fleet.advance(START + 9_700) == ["far"]
    assert list(fleet.free(SHAPE)) == []


def test_announcement_that_stays_on_the_node_is_ignored_in_the_end() -> None:
    fleet = an_inventory(a_tpu_node("tpu-0", **maintained(100)))
    fleet.advance(START)
    assert list(fleet.free(SHAPE)) == []
    fleet.advance(START + 100 + 21_600)
    assert [part.name for part in fleet.free(SHAPE)] == ["tpu-0"]


SIGNALS = LifetimeSignals(("lives", "runs"), (("flex", "start"),), 700.0, 30.0)


@pytest.mark.parametrize(
    ("labels", "created", "announced", "end"),
    [
        ({}, True, None, None),
        ({}, True, 50.0, 50.0),
        ({"lives": "60", "runs": "40"}, True, 50.0, 40.0),
        ({"lives": "60", "runs": "0"}, True, None, 60.0),
        ({"lives": "1"}, True, None, 1.0),
        ({"flex": "start"}, True, None, 700.0),
        ({"flex": "start", "lives": "900"}, True, None, 900.0),
        # A time from an unknown beginning says nothing.
        ({"flex": "start", "lives": "60"}, False, None, None),
        ({"flex": "start", "lives": "60"}, False, 50.0, 50.0),
        # 12 digits are a lifetime, 13 are none.
        ({"lives": "9" * 12}, True, None, 999_999_999_999.0),
        ({"lives": "9" * 13}, True, None, None),
    ],
)
def test_end_is_the_earliest_that_is_known_of_the_node_itself(
    labels: Mapping[str, str], created: bool, announced: float | None, end: float | None
) -> None:
    view = project_node(a_tpu_node("tpu-0", labels=labels, created=READY_SINCE if created else ""))
    view = replace(view, announced_end=None if announced is None else START + announced)
    assert end_of_life(view, SIGNALS) == (None if end is None else START + end)
