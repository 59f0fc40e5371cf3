"""Required node affinity, as the documentation of kube-scheduler has it (assign-pod-node, operators)."""

from __future__ import annotations

from typing import Any

import pytest
from diloco_operator.fleet.affinity import attracts, node_terms, only_nodes

LABELS = {"zone": "a", "generation": "5", "word": "five"}


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def labels(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("term", "fits"),
    [
        (labels("zone", "In", "a", "b"), True),
        (labels("zone", "In", "b"), False),
        (labels("absent", "In", "b"), False),
        (labels("zone", "NotIn", "a"), False),
        (labels("absent", "NotIn", "a"), True),  # also where there is no such label
        (labels("zone", "Exists"), True),
        (labels("absent", "Exists"), False),
        (labels("zone", "DoesNotExist"), False),
        (labels("absent", "DoesNotExist"), True),
        (labels("generation", "Gt", "4"), True),
        (labels("generation", "Gt", "5"), False),
        (labels("generation", "Gt", "6"), False),
        (labels("generation", "Lt", "6"), True),
        (labels("generation", "Lt", "5"), False),
        (labels("generation", "Lt", "4"), False),
        (labels("word", "Gt", "4"), False),
        (labels("absent", "Lt", "4"), False),
        (labels("generation", "Gt"), False),
        (labels("zone", "Near", "b"), True),  # the API server rejects such a pod and explains why
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["host-1"]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["host-1"]}]}, False),
    ],
)
def test_terms_match_labels_and_names_of_nodes(term: dict[str, Any], fits: bool) -> None:
    assert attracts(node_terms(required(term)), LABELS, "host-1") is fits


def test_terms_are_alternatives_and_all_expressions_of_one_must_match() -> None:
    both = {"matchExpressions": [*labels("zone", "In", "a")["matchExpressions"], *labels("generation", "In", "6")["matchExpressions"]]}
    assert not attracts(node_terms(required(both)), LABELS, "host-1")
    assert attracts(node_terms(required(both, labels("word", "Exists"))), LABELS, "host-1")


def test_pod_without_requirements_may_run_anywhere() -> None:
    empty: tuple[dict[str, Any] | None, ...] = (None, {}, {"nodeAffinity": {}})
    for affinity in empty:
        assert attracts(node_terms(affinity), {}, "host-1")


def test_empty_term_matches_no_node() -> None:
    assert not attracts(node_terms(required({})), LABELS, "host-1")
    assert attracts(node_terms(required({}, labels("zone", "Exists"))), LABELS, "host-1")


def named(*names: str, operator: str = "In", key: str = "metadata.name") -> dict[str, Any]:
    return {"matchFields": [{"key": key, "operator": operator, "values": list(names)}]}


BOTH = {"matchFields": named("host-1", "host-2")["matchFields"] + named("host-2", "host-3")["matchFields"]}


@pytest.mark.parametrize(
    ("affinity", "names"),
    [
        (None, None),
        (required(named("host-1", "host-2")), {"host-1", "host-2"}),
        (required(named("host-1"), {**named("host-2"), **labels("zone", "Exists")}), {"host-1", "host-2"}),
        (required(BOTH), {"host-2"}),
        (required(named("host-1"), labels("zone", "Exists")), None),
        (required(named("host-1", operator="NotIn")), None),
        (required(named("host-1", key="metadata.namespace")), None),
    ],
)
def test_only_nodes_are_those_that_every_term_names(affinity: dict[str, Any] | None, names: set[str] | None) -> None:
    assert only_nodes(node_terms(affinity)) == names
