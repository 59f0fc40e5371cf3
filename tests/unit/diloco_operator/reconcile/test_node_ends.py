"""Nodes whose end is known: announced maintenance, flex-start capacity and limited run times. Units leave them ahead of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builders import timelines as t
from builders.jobs import a_job
from builders.nodes import a_node, a_tpu_node, a_tpu_slice
from builders.stage import START, Stage, one_unit_on_two_nodes
from builders.timelines import at, given, has, states, timelines, unit
from diloco_operator.fleet import Inventory
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile import OperatorConfig

MAINTENANCE = "cloud.google.com/scheduled-maintenance-time"
ENDS = "node.gke.io/machine-termination-datetime"
DAY = 86400.0


def after(seconds: float) -> str:
    """So long after the test began."""
    return format_timestamp(START + seconds)


def ends(seconds: float) -> dict[str, Any]:
    """Fields of a node that ends so long after the test began."""
    return {"annotations": {ENDS: after(seconds)}}


def maintained(seconds: float) -> dict[str, Any]:
    """Fields of a node whose maintenance begins so long after the test began."""
    return {"labels": {MAINTENANCE: str(round(START + seconds))}}


trained = t.scene(one_unit_on_two_nodes)


@t.scene
def two_slices(last: Mapping[str, Any]) -> Stage:
    """Make two slices of two hosts each, and a unit that may start on either. `last`: fields of the last host of the first."""
    first = [*a_tpu_slice("np-0", 1), a_tpu_node("np-0-1", topology="2x2x2", pool="np-0", **last)]
    return Stage(a_job().with_learners(1, 1).with_pool(max=1, topology="2x2x2"), *first, *a_tpu_slice("np-1", 2))


@t.scene
def starting(config: OperatorConfig, **node: Any) -> Stage:
    """A unit whose only node is this one."""
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1), a_tpu_node("tpu-0", **node), config=config)
    stage.inventory = Inventory(config.disruption_signals)
    stage.set_node(stage.nodes["tpu-0"])
    return stage


def syncers_node(fields: Mapping[str, Any]) -> t.Event:
    return t.Event(lambda stage: stage.set_node(a_node("cpu-0", **fields)))


# Both leads are 300 s.
test_units = timelines(
    **{
        f"unit_leaves_ahead_of_{what}_drained_and_goes_on_elsewhere_and_it_does_not_count": given(
            trained(),
            at(0, t.node("tpu-0", **fields), t.one_reconcile, states(v5p_0="Training"), t.next_reconcile_within(700)),
            at(699, states(v5p_0="Training")),
            at(700, unit(state="Draining", message=message)),
            at(700, t.deleted_pods_end, unit(slice="tpu-1", attempt=2, failures=0)),
        )
        for what, fields, message in (
            ("the_end_of_its_node", ends(1000), "node tpu-0 ends at 2026-11-20T12:16:40Z"),
            ("announced_maintenance", maintained(1000), has("maintenance of node tpu-0 begins at 2026-11-20T12:16:40Z")),
        )
    },
    end_that_is_put_off_is_followed=given(
        trained(),
        at(0, t.node("tpu-0", **ends(400)), t.reconciled, t.node("tpu-0", **ends(4000))),
        at(200, states(v5p_0="Training")),
    ),
    maintenance_that_is_moved_or_withdrawn_is_followed=given(
        trained(),
        at(0, t.node("tpu-0", **maintained(400)), t.reconciled, t.node("tpu-0", **maintained(4000))),
        at(200, states(v5p_0="Training"), t.node("tpu-0")),
        at(4200, states(v5p_0="Training")),
    ),
    # An Arabic-Indic digit is a number to Python, and a moment long past: nothing to leave for either.
    **{
        f"maintenance_that_cannot_be_read_is_none[{value}]": given(
            trained(),
            at(0, t.node("tpu-0", labels={MAINTENANCE: value})),
            at(1, states(v5p_0="Training")),
        )
        for value in ("", "soon", "-5", "1e9", "\u0663")
    },
    **{
        f"{what}_of_one_host_takes_the_whole_slice": given(two_slices(fields), at(0, t.reconciled, unit(slice="np-1")))
        for what, fields in (("end", ends(200)), ("maintenance", maintained(100)))
    },
    **{
        f"syncer_leaves_a_node_ahead_of_its_{what}_too": given(
            trained(),
            at(0, syncers_node(fields), t.one_reconcile, t.seen("leaves", lambda s: "deletionTimestamp" in s.syncer["metadata"], True)),
        )
        for what, fields in (("end", ends(100)), ("maintenance", maintained(100)))
    },
    lead_of_maintenance_is_the_operators_to_set=given(
        starting(OperatorConfig(maintenance_lead=2000.0), **maintained(1000)),
        at(0, t.reconciled, unit(reason="NoCapacity")),
        at(0, t.seen("pool", lambda stage: stage.status["pools"][0]["message"], has("maintenance of node tpu-0"))),
    ),
    lead_and_signals_of_ends_are_the_operators_to_set=given(
        starting(
            OperatorConfig(end_lead=30.0, end_annotations=("example.com/ends",), flex_start_lifetime=DAY),
            annotations={ENDS: after(0), "example.com/ends": after(100)},
        ),
        at(69, unit(slice="tpu-0")),
        at(70, t.seen("starts", lambda stage: stage.unit("v5p-0")["state"] == "Starting", False)),
    ),
    node_that_karpenter_takes_away_is_left_at_once=given(
        trained(),
        at(0, t.node("tpu-0", taints=[{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}])),
        at(0, unit(state="Draining", message=has("karpenter.sh/disrupted"))),
    ),
)
