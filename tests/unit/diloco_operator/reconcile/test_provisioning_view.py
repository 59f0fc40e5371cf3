"""What the conditions of a ProvisioningRequest say together."""

from __future__ import annotations

from typing import Any

import pytest
from builders.provisioning import a_condition, a_request
from diloco_operator.kube.fields import MalformedField
from diloco_operator.kube.timestamps import parse_timestamp
from diloco_operator.operator.projections import project_granted
from diloco_operator.reconcile.grantors.provisioning_request import REQUESTS
from diloco_operator.reconcile.grantors.provisioning_view import RequestState, project_request

CREATED, SAID = parse_timestamp("2026-11-20T20:00:00Z"), parse_timestamp("2026-11-20T21:00:00Z")


@pytest.mark.parametrize(
    ("conditions", "state", "words"),
    [
        ([], RequestState.WAITING, ""),
        ([a_condition("Accepted", message="ok")], RequestState.WAITING, "Accepted=True: Said: ok"),
        (
            [a_condition("Provisioned", "False", message="no A100 in zone b"), a_condition("Accepted")],
            RequestState.WAITING,
            "Accepted=True: Said; Provisioned=False: Said: no A100 in zone b",
        ),
        (
            [a_condition("Accepted"), a_condition("Provisioned", message="all there")],
            RequestState.PROVISIONED,
            "Provisioned=True: Said: all there",
        ),
        ([a_condition("Provisioned"), a_condition("BookingExpired")], RequestState.EXPIRED, "BookingExpired=True: Said"),
        (
            [a_condition("Provisioned"), a_condition("BookingExpired"), a_condition("CapacityRevoked")],
            RequestState.REVOKED,
            "CapacityRevoked=True: Said",
        ),
        ([a_condition("Accepted"), a_condition("Failed", message="quota")], RequestState.FAILED, "Failed=True: Said: quota"),
        ([a_condition("Failed", "False"), a_condition("Provisioned")], RequestState.PROVISIONED, "Provisioned=True: Said"),
        ([a_condition("example.com/Pondering")], RequestState.WAITING, "example.com/Pondering=True: Said"),
        ([a_condition("Provisioned", "Perhaps")], RequestState.WAITING, "Provisioned=Perhaps: Said"),
    ],
)
def test_conditions_tell_one_state_and_the_words_for_it(conditions: list[Any], state: RequestState, words: str) -> None:
    found = project_request(a_request(*conditions))
    assert (found.state, found.words, found.problem) == (state, words, "")


def test_request_that_says_provisioned_and_failed_is_nonsense_with_both_words() -> None:
    found = project_request(a_request(a_condition("Provisioned"), a_condition("Failed", message="quota")))
    assert found.state is RequestState.NONSENSE
    assert found.problem == "its conditions contradict each other: Provisioned=True: Said; Failed=True: Said: quota"


@pytest.mark.parametrize(
    "status",
    [7, [], "x", {"conditions": {}}, {"conditions": [7]}, {"conditions": [{"type": 3}]}, {"conditions": [{"status": "True"}]},
     {"conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": "yesterday"}]},
     {"conditions": [{"type": "Failed", "status": "True", "message": ["no"]}]}],
)  # fmt: skip
def test_status_that_cannot_be_read_leaves_the_request_there_and_says_what_is_wrong(status: object) -> None:
    found = project_request({**a_request(), "status": status})
    assert (found.name, found.state) == ("lm-v6e-0-a1", RequestState.NONSENSE)
    assert found.problem.startswith("status")


def test_since_when_is_the_time_of_the_condition_or_of_the_request() -> None:
    assert project_request(a_request()).since == CREATED
    assert project_request(a_request(a_condition("Provisioned"))).since == SAID
    assert project_request(a_request({"type": "Failed", "status": "True"})).since == CREATED


def test_request_without_a_job_is_no_request_of_ours() -> None:
    obj = a_request()
    del obj["metadata"]["labels"]
    with pytest.raises(MalformedField, match=r"diloco\.dev/job is missing"):
        project_granted(REQUESTS, obj)


def test_long_words_of_strangers_are_clipped() -> None:
    found = project_request(a_request(a_condition("Failed", message="x" * 100_000)))
    assert len(found.words) < 1200
