"""What a Workload of Kueue says of a pod group, and what a pod says of its group."""

from __future__ import annotations

import pytest
from builders.pods import a_learner_pod
from builders.workloads import NO_QUOTA, a_workload, preempts, takes_up
from diloco_operator.reconcile import project_pod
from diloco_operator.reconcile.grantors.kueue import Workload, project_workload
from diloco_operator.reconcile.observe.pod_marks import PodGroup

GROUP = {"kueue.x-k8s.io/pod-group-name": "lm-v5p-0-a1-abc", "kueue.x-k8s.io/queue-name": "team-a"}


def test_workload_that_waits_has_kueues_words() -> None:
    assert project_workload(a_workload(says=NO_QUOTA)) == Workload(None, NO_QUOTA)


def test_workload_that_kueue_has_not_come_to_has_no_words() -> None:
    assert project_workload({"metadata": {}}) == Workload(None, "")


def test_admitted_workload_has_the_time_of_its_admission() -> None:
    assert project_workload(a_workload(admitted_at=1000.0)) == Workload(1000.0, "")


def test_workload_with_quota_waits_for_its_admission_checks() -> None:
    reserved = {"type": "QuotaReserved", "status": "True", "message": "Quota reserved in ClusterQueue gpus"}
    checks = [{"name": "ready", "state": "Ready", "message": "there"}, {"name": "dws", "state": "Pending", "message": "no A3 in zone b"}]
    assert project_workload(a_workload(conditions=[reserved], admissionChecks=checks)) == Workload(None, "no A3 in zone b")


@pytest.mark.parametrize("status", [7, {"conditions": {}}, {"conditions": [7]}, {"conditions": [{"type": "Admitted", "status": 1}]}])
def test_status_that_is_nonsense_leaves_the_group_waiting(status: object) -> None:
    found = project_workload({"metadata": {}, "status": status})
    assert found.admitted_at is None


def test_conditions_of_another_type_say_so() -> None:
    found = project_workload({"metadata": {}, "status": {"conditions": [7]}})
    assert found.words.startswith("its Workload cannot be read: status.conditions[0] must be an object")


def test_long_words_of_strangers_are_clipped() -> None:
    assert len(project_workload(a_workload(says="x" * 100_000)).words) < 1200


# --- pods -------------------------------------------------------------------------------------------------------------
def test_pod_without_the_label_is_in_no_group() -> None:
    assert project_pod(a_learner_pod()).group is None


def test_pod_names_its_group_and_whether_kueue_counts_it() -> None:
    pod = a_learner_pod()
    pod["metadata"]["labels"] |= GROUP
    assert project_pod(pod).group == PodGroup("lm-v5p-0-a1-abc", "team-a", held=False, released=False)
    takes_up(pod)
    pod["metadata"]["annotations"]["kueue.x-k8s.io/retriable-in-group"] = "false"
    assert project_pod(pod).group == PodGroup("lm-v5p-0-a1-abc", "team-a", held=True, released=True)


def test_preempted_pod_has_kueues_words() -> None:
    pod = a_learner_pod()
    preempts(pod, 0.0)
    assert project_pod(pod).disruption == "WorkloadEvicted: Preempted to accommodate a workload"


def test_pod_that_is_deleted_before_it_is_bound_never_runs() -> None:
    pod = a_learner_pod()
    del pod["metadata"]["annotations"]["diloco.dev/node"]
    assert not project_pod(pod).never_runs
    preempts(pod, 0.0)
    assert project_pod(pod).never_runs
    pod["spec"]["nodeName"] = "tpu-0"
    assert not project_pod(pod).never_runs
