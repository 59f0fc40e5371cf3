"""When a node takes no new unit, when the units on it must leave, and when that may change."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from builders.nodes import READY_SINCE, a_node
from diloco_operator.fleet import DisruptionSignals, NodeView, project_node
from diloco_operator.fleet.health import (
    NotReadyCounts,
    count_not_ready,
    disruption,
    eviction_reason,
    is_unreachable,
    lost_from,
    next_transition,
    not_ready_recheck,
    unusable,
)
from diloco_operator.fleet.lifetime import LifetimeSignals
from diloco_operator.kube.timestamps import parse_timestamp

NOW = parse_timestamp(READY_SINCE)
SIGNALS = DisruptionSignals(
    taints=("going",),
    labels=(("state", "leaving"),),
    unreachable_taints=("out",),
    not_ready_tolerance=5.0,
    ready_unknown_tolerance=15.0,
    outage_tolerance=300.0,
    maintenance_labels=("upkeep", "repair"),
    maintenance_lead=100.0,
    maintenance_over=50.0,
    lifetime=LifetimeSignals(lifetime_labels=("lives",), flex_start_labels=(), flex_start_lifetime=0.0, lead=30.0),
)
CALM = NotReadyCounts(10, 1, -math.inf)
OUTAGE = NotReadyCounts(10, 9, -math.inf)
SAYS_NOT_READY: dict[str, Any] = {"ready": False, "heard": True}
UNKNOWN: dict[str, Any] = {"ready": False}


def node(*, says: str = "", deleting: bool = False, **fields: Any) -> NodeView:
    """`says`: the message of its Ready condition."""
    return replace(project_node(a_node("n", **fields)), ready_message=says, deleting=deleting)


def taint(key: str) -> list[dict[str, str]]:
    return [{"key": key, "effect": "NoSchedule"}]


def maintained(**starts: float) -> dict[str, Any]:
    """Label -> seconds from now until the maintenance begins."""
    return {"labels": {label: str(round(NOW + start)) for label, start in starts.items()}}


def lives(seconds: float) -> dict[str, Any]:
    return {"labels": {"lives": str(seconds)}, "created": READY_SINCE}


# --- what is announced ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({}, ""),
        ({"taints": taint("going")}, "node n has the taint going"),
        ({"taints": taint("staying")}, ""),
        ({"labels": {"state": "leaving"}}, "node n has the label state=leaving"),
        ({"labels": {"state": "staying"}}, ""),
        ({"deleting": True}, "node n is being deleted"),
        # From 100 s before the maintenance until 50 s after its beginning, which is not in it.
        (maintained(upkeep=100), "maintenance of node n begins at 2026-11-20T11:01:40Z"),
        (maintained(upkeep=101), ""),
        (maintained(upkeep=-49), "maintenance of node n begins at 2026-11-20T10:59:11Z"),
        (maintained(upkeep=-50), ""),
        (maintained(upkeep=1000, repair=100), "maintenance of node n begins at 2026-11-20T11:01:40Z"),
        # From 30 s before the end on.
        (lives(30), "node n ends at 2026-11-20T11:00:30Z"),
        (lives(31), ""),
    ],
)
def test_loss_of_a_node_is_announced_by_a_taint_a_label_its_deletion_maintenance_or_its_end(how: dict[str, Any], why: str) -> None:
    assert disruption(node(**how), SIGNALS, NOW) == why
    assert unusable(node(**how), SIGNALS, NOW) == why
    assert eviction_reason(node(**how), "n", SIGNALS, NOW, CALM) == why


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (SAYS_NOT_READY, "node n is NotReady"),
        ({**UNKNOWN, "says": "kubelet stopped"}, "node n is NotReady (kubelet stopped)"),
        ({"cordoned": True}, "node n is cordoned"),
    ],
)
def test_no_unit_starts_on_a_node_that_is_not_ready_or_cordoned_but_those_there_stay(how: dict[str, Any], why: str) -> None:
    assert unusable(node(**how), SIGNALS, NOW) == why
    assert eviction_reason(node(**how), "n", SIGNALS, NOW, CALM) == ""


@pytest.mark.parametrize(
    ("how", "moments"),
    [
        ({}, []),
        (maintained(upkeep=1000), [900, 1050]),
        (lives(2000), [1970]),
        ({**lives(1000), "labels": {**maintained(upkeep=1000)["labels"], "lives": "1000"}}, [900, 970, 1050]),
    ],
)
def test_time_alone_changes_the_answer_where_maintenance_begins_or_is_over_and_at_the_end(
    how: dict[str, Any], moments: list[float]
) -> None:
    found, at = [], NOW
    while (moment := next_transition(node(**how), SIGNALS, at)) is not None:
        found.append(moment - NOW)
        at = moment
    assert found == moments


# --- nodes that are not ready -----------------------------------------------------------------------------------------
def test_counts_tell_how_many_nodes_are_not_ready_and_when_readiness_last_came_or_became_unknown() -> None:
    ready, says, unknown, never = (
        replace(node(**how), ready_since=since) for how, since in (({}, 10.0), (SAYS_NOT_READY, 20.0), (UNKNOWN, 15.0), (UNKNOWN, None))
    )
    assert count_not_ready([ready, says, unknown, never]) == NotReadyCounts(4, 3, 15.0)
    assert count_not_ready([ready, says]) == NotReadyCounts(2, 1, 10.0)
    assert count_not_ready([says]) == NotReadyCounts(1, 1, -math.inf)
    assert count_not_ready([]) == NotReadyCounts(0, 0, -math.inf)


@pytest.mark.parametrize(
    ("nodes", "not_ready", "outage"),
    [
        (0, 0, False),
        (2, 2, False),
        (3, 3, True),
        (5, 3, True),
        (6, 3, False),
        (20, 11, True),
        (20, 10, False),
        (100, 55, True),
        (100, 54, False),
    ],
)
def test_more_than_two_nodes_and_55_percent_of_them_are_an_outage(nodes: int, not_ready: int, outage: bool) -> None:
    assert NotReadyCounts(nodes, not_ready, 0.0).outage is outage


@pytest.mark.parametrize(
    ("how", "counts", "seconds"),
    [
        (SAYS_NOT_READY, CALM, 5),
        (SAYS_NOT_READY, OUTAGE, 300),
        (UNKNOWN, CALM, 15),
        (UNKNOWN, OUTAGE, 300),
        # Others changed later: 15 s after the last of them, and 300 s after this one at the latest.
        (UNKNOWN, replace(CALM, changed=NOW + 10), 25),
        (UNKNOWN, replace(CALM, changed=NOW - 10), 15),
        (UNKNOWN, replace(CALM, changed=NOW + 286), 300),
        (SAYS_NOT_READY, replace(CALM, changed=NOW + 10), 5),
    ],
)
def test_node_counts_as_lost_when_it_was_not_ready_for_as_long_as_it_is_tolerated(
    how: dict[str, Any], counts: NotReadyCounts, seconds: float
) -> None:
    view = node(**how, says="stopped")
    assert lost_from(view, SIGNALS, counts) == NOW + seconds
    for after, reason in ((seconds - 1, ""), (seconds, "node n is NotReady (stopped)")):
        assert eviction_reason(view, "n", SIGNALS, NOW + after, counts) == reason
        assert is_unreachable(view, SIGNALS, NOW + after, counts) is bool(reason)
    # Ready again in time: nothing is lost, however long ago it changed.
    assert eviction_reason(node(), "n", SIGNALS, NOW + 1000, counts) == ""
    assert not is_unreachable(node(), SIGNALS, NOW + 1000, counts)


def test_node_that_does_not_say_since_when_it_is_not_ready_counts_as_lost_at_once() -> None:
    view = replace(node(**UNKNOWN), ready_since=None)
    assert eviction_reason(view, "n", SIGNALS, 0.0, OUTAGE) == "node n is NotReady"


def test_node_that_is_gone_is_left_and_answers_nobody() -> None:
    assert eviction_reason(None, "n", SIGNALS, NOW, CALM) == "node n is gone"
    assert is_unreachable(None, SIGNALS, NOW, CALM)


def test_taint_says_that_the_kubelet_of_a_ready_node_does_not_answer() -> None:
    assert is_unreachable(node(taints=taint("out")), SIGNALS, NOW, CALM)
    assert not is_unreachable(node(taints=taint("going")), SIGNALS, NOW, CALM)


def test_not_ready_node_is_checked_again_when_it_counts_as_lost_and_every_ten_seconds_until_then() -> None:
    assert not_ready_recheck(node(), SIGNALS, NOW, CALM) is None
    assert not_ready_recheck(node(**SAYS_NOT_READY), SIGNALS, NOW, CALM) == NOW + 5
    assert not_ready_recheck(node(**SAYS_NOT_READY), SIGNALS, NOW, OUTAGE) == NOW + 10
    assert not_ready_recheck(node(**SAYS_NOT_READY), SIGNALS, NOW + 291, OUTAGE) == NOW + 300
