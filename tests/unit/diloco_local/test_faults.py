"""Fault injection: the form of faults, when they are due, and their targets."""

import pytest
from builders.jobs import a_manifest, gpu_pool, tpu_pool
from builders.pods import a_pod
from diloco_local.faults import BadFault, Fault, due, parse, target_pod, unknown_units
from diloco_operator.kube.client import Obj


def learner(unit: str, attempt: int = 1, phase: str = "Running", host: int = 0) -> Obj:
    labels = {"diloco.dev/job": "job", "diloco.dev/unit": unit, "diloco.dev/attempt": str(attempt), "diloco.dev/host": str(host)}
    pod = a_pod(f"job-{unit}-a{attempt}-{host}", metadata={"labels": {**labels, "diloco.dev/component": "learner"}})
    return {**pod, "status": {"phase": phase}}


def syncer() -> Obj:
    pod = a_pod("job-syncer", metadata={"labels": {"diloco.dev/job": "job", "diloco.dev/component": "syncer"}})
    return {**pod, "status": {"phase": "Running"}}


def name_of(pod: Obj | None) -> str:
    assert pod is not None
    return str(pod["metadata"]["name"])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("unit=v5p-0,step=60,signal=KILL", Fault("v5p-0", 60, "KILL")),
        ("unit=syncer,step=0", Fault("syncer", 0, "KILL")),
        ("step=7, unit=a-1, signal=sigstop, job=x", Fault("a-1", 7, "STOP", "x")),
    ],
)
def test_faults_are_read(text: str, fault: Fault) -> None:
    assert parse(text) == fault
    assert parse(str(fault)) == fault


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unit=v5p-0", "lacks step"),
        ("step=1", "lacks unit"),
        ("unit=v5p-0,step=-1", "whole number"),
        ("unit=v5p-0,step=1,signal=HUP", "KILL, TERM, STOP, CONT"),
        ("unit=v5p-0,step=1,step=2", "step is given twice"),
        ("v5p-0", "not valid"),
        ("unit=,step=1", "not valid"),
        ("unit=a-0,step=1,when=now", "not valid"),
    ],
)
def test_what_is_no_fault_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(BadFault, match=message):
        parse(text)


def test_units_that_no_job_can_have_are_named() -> None:
    jobs = [a_manifest("bytes-lm", pools=[tpu_pool("v5p"), gpu_pool("h100")])]
    faults = [parse(f"unit={unit},step=1") for unit in ("v5p-0", "syncer", "v6e-0", "h100", "h100-x")]
    sentences = unknown_units(faults, jobs)
    assert [sentence.split("'")[1] for sentence in sentences] == ["v6e-0", "h100", "h100-x"]
    assert all("h100, v5p" in sentence for sentence in sentences)


def test_a_fault_is_due_from_its_step_on_and_only_for_its_job() -> None:
    faults = [Fault("a-0", 10), Fault("a-1", 20), Fault("a-2", 10, job="other")]
    assert due(faults, "job", 9) == []
    assert due(faults, "job", 15) == [faults[0]]
    assert due(faults, "other", 20) == faults


def test_newest_running_attempt_is_hit() -> None:
    pods = [learner("a-0", 1), learner("a-0", 10), learner("a-0", 9), learner("a-0", 11, "Pending"), learner("a-1", 12), syncer()]
    assert [name_of(target_pod(pods, "job", unit)) for unit in ("a-0", "syncer")] == ["job-a-0-a10-0", "job-syncer"]
    assert target_pod(pods, "other", "a-0") is None
    assert target_pod([learner("a-0", 1, "Failed")], "job", "a-0") is None
