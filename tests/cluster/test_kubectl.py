"""What a person with kubectl sees of a DiLoCoJob on a real API server, with the CRD as it is installed."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from builders.control_plane import PROGRAMS, ROOT, CommandFailed, ControlPlane
from builders.job_cases import REFUSED, an_ended_job
from builders.jobs import Obj, a_manifest, gpu_pool, tpu_pool, with_field
from diloco_operator.api.spec import MAX_LEARNERS

EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.yaml")) if "kind: ComputeDomain" not in path.read_text()]
"""Without those that need another project's CRD."""


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    """With the CRD, which other tests of this plane may use as well."""
    control_plane.install_crd()
    return control_plane


@pytest.fixture(scope="module")
def empty(plane: ControlPlane) -> Iterator[str]:
    """A namespace for tests in which nothing is made: to delete one is much work for the server."""
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": "kubectl-empty"}})
    yield "kubectl-empty"
    plane.request("DELETE", "/api/v1/namespaces/kubectl-empty")


@pytest.fixture
def namespace(plane: ControlPlane) -> Iterator[str]:
    """One of the test's own."""
    made = plane.request("POST", "/api/v1/namespaces", {"metadata": {"generateName": "kubectl-"}})
    name: str = made["metadata"]["name"]
    yield name
    plane.request("DELETE", f"/api/v1/namespaces/{name}")


def applied(plane: ControlPlane, namespace: str, obj: Obj, *flags: str) -> str:
    """What `kubectl apply` says on standard output. Raises `CommandFailed` where it is refused."""
    return plane.kubectl("apply", "-n", namespace, "-f", "-", *flags, input=json.dumps(obj)).stdout


def refusal(plane: ControlPlane, namespace: str, obj: Obj, *flags: str) -> str:
    """What `kubectl apply` says on standard error."""
    with pytest.raises(CommandFailed) as error:
        applied(plane, namespace, obj, *flags)
    return str(error.value.done.stderr)


def condition(type: str, status: str, reason: str, message: str) -> Obj:
    when = {"lastTransitionTime": "2026-11-20T21:00:00Z", "observedGeneration": 1}
    return {"type": type, "status": status, "reason": reason, "message": message, **when}


TRAINING = {
    "observedGeneration": 1,
    "state": "Training",
    "reason": "QuorumContributing",
    "conditions": [
        condition("Training", "True", "QuorumContributing", "4 of 4 learners contribute"),
        condition("Degraded", "False", "EnoughLearners", "4 contribute, at least 2 are wanted"),
        condition("Complete", "False", "InProgress", "step 812 of 2400"),
    ],
    "progress": {"step": 812, "steps": 2400, "tokens": 41574400, "loss": 2.31, "cosine": 0.412, "tokensPerSecond": 51200.5},
    "learners": {"desired": 4, "placed": 4, "contributing": 4, "min": 2, "max": 6},
    "units": [{"name": "v5p-0", "pool": "v5p", "slice": "np-v5p-1", "state": "Training", "attempt": 2, "restarts": 1}],
    "selector": "diloco.dev/job=bytes-lm,diloco.dev/component=learner",
    "poolSummary": "v5p 4/4, h100 0/0",
    "pools": [{"name": "h100", "reason": "NoFreeSlice", "message": "2 of 2 slices are in use"}],
}


def set_status(plane: ControlPlane, namespace: str, status: Obj) -> None:
    path = f"/apis/diloco.dev/v1alpha1/namespaces/{namespace}/dilocojobs/bytes-lm/status"
    plane.request("PATCH", path, {"status": status}, content_type="application/merge-patch+json")


def rows(text: str) -> list[list[str]]:
    """Cells of a table as kubectl prints it."""
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines()]


# --- looking ----------------------------------------------------------------------------------------------------------
def test_get_tells_the_state_why_how_many_how_far_how_well_how_old(plane: ControlPlane, namespace: str) -> None:
    applied(plane, namespace, a_manifest())
    set_status(plane, namespace, TRAINING)
    header, row = rows(plane.kubectl("get", "dlj", "-n", namespace).stdout)
    assert header == ["NAME", "STATE", "REASON", "LEARNERS", "OF", "STEP", "STEPS", "LOSS", "AGE"]
    assert row[:-1] == ["bytes-lm", "Training", "QuorumContributing", "4", "4", "812", "2400", "2.31"]
    assert re.fullmatch(r"\d+s", row[-1])
    header, row = rows(plane.kubectl("get", "diloco", "-n", namespace, "-o", "wide").stdout)  # by category
    assert dict(zip(header[8:-1], row[8:-1], strict=True)) == {"COSINE": "0.412", "TOKENS/S": "51200.5", "POOLS": "v5p 4/4, h100 0/0"}


def test_get_of_a_job_without_status_is_no_error(plane: ControlPlane, namespace: str) -> None:
    applied(plane, namespace, a_manifest())
    header, row = rows(plane.kubectl("get", "dilocojobs", "-n", namespace).stdout)
    assert (header[0], row[0], len(row)) == ("NAME", "bytes-lm", 2)  # a name and an age


def test_scale_tells_autoscalers_how_many_learners_there_are_and_which_pods_they_have(plane: ControlPlane, namespace: str) -> None:
    applied(plane, namespace, a_manifest())
    set_status(plane, namespace, TRAINING)
    scale = json.loads(plane.kubectl("get", "--raw", f"/apis/diloco.dev/v1alpha1/namespaces/{namespace}/dilocojobs/bytes-lm/scale").stdout)
    assert scale["status"] == {"replicas": 4, "selector": "diloco.dev/job=bytes-lm,diloco.dev/component=learner"}
    assert scale["spec"] == {"replicas": a_manifest()["spec"]["learners"]["max"]}


def test_describe_tells_the_story(plane: ControlPlane, namespace: str) -> None:
    applied(plane, namespace, a_manifest())
    set_status(plane, namespace, TRAINING)
    made = plane.request("GET", f"/apis/diloco.dev/v1alpha1/namespaces/{namespace}/dilocojobs/bytes-lm")
    about = {"apiVersion": made["apiVersion"], "kind": made["kind"], "namespace": namespace, "name": "bytes-lm"}
    event = {
        "metadata": {"generateName": "bytes-lm."},
        "involvedObject": {**about, "uid": made["metadata"]["uid"]},
        "type": "Warning",
        "reason": "UnitLost",
        "message": "v5p-0: node np-v5p-1 went away",
        "source": {"component": "diloco-operator"},
        "count": 1,
    }
    plane.request("POST", f"/api/v1/namespaces/{namespace}/events", event)
    told = " ".join(plane.kubectl("describe", "dlj/bytes-lm", "-n", namespace).stdout.split())
    for words in (
        "Message: 4 of 4 learners contribute Observed Generation: 1 Reason: QuorumContributing Status: True Type: Training",
        "Message: 2 of 2 slices are in use Name: h100 Reason: NoFreeSlice",
        "Name: v5p-0 Pool: v5p Restarts: 1 Slice: np-v5p-1 State: Training",
        "diloco-operator v5p-0: node np-v5p-1 went away",
    ):
        assert words in told, told


def test_explain_tells_what_to_write(plane: ControlPlane) -> None:
    told = " ".join(plane.kubectl("explain", "dilocojob.spec.pools").stdout.split())
    for words in (
        "The kinds of hardware that a learner may run on, in order of preference.",
        "accelerator <string> -required- Kind of hardware. Immutable. Built in are tpu-v4, tpu-v5e,",
        "Topology of the slice that one unit occupies, such as 2x2x2. Required for TPUs, and for them only.",
        "enum: Reserved, OnDemand, Spot, FlexStart, ....",
        'Pod template; its container named "learner" is the training program.',
    ):
        assert words in told, told


def test_explain_says_something_of_every_field_of_ours(plane: ControlPlane) -> None:
    """The API server gives `explain` the schema that it published: nothing of it may have been lost on the way."""
    published = plane.request("GET", "/openapi/v3/apis/diloco.dev/v1alpha1")["components"]["schemas"]["dev.diloco.v1alpha1.DiLoCoJob"]
    assert list(undescribed(published["properties"]["spec"], "spec")) == []
    assert list(undescribed(published["properties"]["status"], "status")) == []


def undescribed(schema: Obj, place: str) -> Iterator[str]:
    if not schema.get("description"):
        yield place
    for name, child in schema.get("properties", {}).items():
        yield from undescribed(child, f"{place}.{name}")
    if "properties" in schema.get("items", {}):
        for name, child in schema["items"]["properties"].items():
            yield from undescribed(child, f"{place}[].{name}")


# --- doing ------------------------------------------------------------------------------------------------------------
def test_scale_sets_the_upper_bound(plane: ControlPlane, namespace: str) -> None:
    applied(plane, namespace, a_manifest())
    set_status(plane, namespace, TRAINING)
    assert plane.kubectl("scale", "dlj/bytes-lm", "--replicas=3", "-n", namespace).stdout == "dilocojob.diloco.dev/bytes-lm scaled\n"
    assert plane.kubectl("get", "dlj/bytes-lm", "-n", namespace, "-o", "jsonpath={.spec.learners.max}").stdout == "3"
    scale = json.loads(plane.kubectl("get", "dlj/bytes-lm", "-n", namespace, "--subresource=scale", "-o", "json").stdout)
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (3, 4)


@pytest.mark.parametrize(
    ("job", "replicas", "field", "words"),
    [
        (a_manifest(), 1, "spec.learners.min", "learners.min must not exceed learners.max; lower min or raise max"),
        (
            a_manifest(min=1, pools=[tpu_pool(min=2), gpu_pool(min=1)]),
            2,
            "spec.pools",
            "the sum of pools[].learners.min must not exceed learners.max; lower the",
        ),
        (a_manifest(), 0, "spec.learners.max", "should be greater than or equal to 1"),
        (a_manifest(), MAX_LEARNERS + 1, "spec.learners.max", f"should be less than or equal to {MAX_LEARNERS}"),
    ],
    ids=["below the minimum", "below the pools", "none", "too many"],
)
def test_scale_to_what_the_job_may_not_have_is_refused_with_the_rule(
    plane: ControlPlane, namespace: str, job: Obj, replicas: int, field: str, words: str
) -> None:
    applied(plane, namespace, job)
    with pytest.raises(CommandFailed, match=rf"{re.escape(field)}: .*{re.escape(words)}"):
        plane.kubectl("scale", "dlj/bytes-lm", f"--replicas={replicas}", "-n", namespace)


def test_scale_beyond_what_the_pools_may_have_is_taken(plane: ControlPlane, namespace: str) -> None:
    """The pools' own maxima hold; learners.max above their sum is no mistake, for pools can be added."""
    applied(plane, namespace, a_manifest())  # two pools of at most 4
    assert plane.kubectl("scale", "dlj/bytes-lm", "--replicas=100", "-n", namespace).stdout == "dilocojob.diloco.dev/bytes-lm scaled\n"
    assert plane.kubectl("get", "dlj/bytes-lm", "-n", namespace, "-o", "jsonpath={.spec.learners.max}").stdout == "100"


def test_wait_for_complete_ends_when_the_job_does(plane: ControlPlane, namespace: str) -> None:
    applied(plane, namespace, a_manifest())
    set_status(plane, namespace, TRAINING)
    command = [str(PROGRAMS / "kubectl"), "wait", "--for=condition=Complete", "dlj/bytes-lm", "-n", namespace, "--timeout=180s"]
    with subprocess.Popen(command, env=plane.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as waiting:
        set_status(plane, namespace, {"conditions": [condition("Complete", "True", "StepsReached", "all 2400 steps are done")]})
        said = waiting.communicate(timeout=180)[0]
    assert (waiting.returncode, said) == (0, "dilocojob.diloco.dev/bytes-lm condition met\n")


def test_a_users_apply_does_not_touch_the_status(plane: ControlPlane, namespace: str) -> None:
    applied(plane, namespace, a_manifest())
    set_status(plane, namespace, TRAINING)
    applied(plane, namespace, {**a_manifest(max=8), "status": {"progress": {"step": 1}}})
    found = plane.request("GET", f"/apis/diloco.dev/v1alpha1/namespaces/{namespace}/dilocojobs/bytes-lm")
    assert (found["spec"]["learners"]["max"], found["status"]["progress"]["step"]) == (8, 812)


# --- refusing ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("what", ["min above max", "quorum above learners.min", "no steps", "no learner container"])
def test_a_wrong_job_is_refused_with_field_and_rule(plane: ControlPlane, empty: str, what: str) -> None:
    """Whatever is wrong: tests/contract has each case on this server, and kubectl prints all causes alike."""
    obj, field, words = REFUSED[what]
    said = refusal(plane, empty, obj)
    assert f"{field}: " in said, said
    assert words in said, said


def test_each_of_several_causes_of_one_job_is_named(plane: ControlPlane, empty: str) -> None:
    said = refusal(plane, empty, a_manifest(min=7, quorum=8))
    for what in ("min above max", "quorum above learners.min"):
        _, field, words = REFUSED[what]
        assert re.search(rf"\* {re.escape(field)}: .*{re.escape(words)}", said), said


@pytest.mark.parametrize(
    ("path", "value"),
    [("spec.learner", {"min": 1}), ("spec.pools[1].learners.minimum", 1), ("spec.training.checkpoint.every", 5), ("specs", {})],
)
def test_an_unknown_field_is_refused_by_its_path(plane: ControlPlane, empty: str, path: str, value: Any) -> None:
    obj = json.dumps(with_field(a_manifest(), path, value))
    with pytest.raises(CommandFailed) as error:
        plane.kubectl("create", "-n", empty, "-f", "-", input=obj)
    assert f'strict decoding error: unknown field "{path}"' in error.value.done.stderr


def test_an_unknown_field_of_a_server_side_apply_is_refused_by_its_name(plane: ControlPlane, empty: str) -> None:
    said = refusal(plane, empty, with_field(a_manifest(), "spec.training.stepz", 5), "--server-side")
    assert ".spec.training.stepz: field not declared in schema" in said


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.name for path in EXAMPLES])
def test_every_example_is_taken_by_a_server(plane: ControlPlane, empty: str, example: Any) -> None:
    said = plane.kubectl("apply", "--server-side", "--dry-run=server", "-n", empty, "-f", str(example)).stdout
    assert said.splitlines()
    assert all(line.endswith("serverside-applied (server dry run)") for line in said.splitlines()), said


def test_an_ended_job_takes_a_change_only_with_what_starts_it_again(plane: ControlPlane, namespace: str) -> None:
    obj = an_ended_job("Failed")
    manifest = {key: value for key, value in obj.items() if key != "status"}
    applied(plane, namespace, manifest)
    set_status(plane, namespace, obj["status"])
    applied(plane, namespace, manifest)
    assert "serverside-applied" in applied(plane, namespace, manifest, "--server-side", "--force-conflicts")
    fixed = with_field(manifest, "spec.pools[0].template.spec.containers[0].image", "registry.example/train:2")
    told = refusal(plane, namespace, fixed, "--server-side")
    hint = "set spec.retry above status.retry (absent is 0) in the same change"
    assert told.startswith('The DiLoCoJob "bytes-lm" is invalid: spec: Invalid value: the job has failed, and this change'), told
    assert hint in told
    with pytest.raises(CommandFailed) as error:
        plane.kubectl("scale", "-n", namespace, "dlj/bytes-lm", "--replicas=3")
    assert hint in error.value.done.stderr
    assert "serverside-applied" in applied(plane, namespace, with_field(fixed, "spec.retry", 1), "--server-side")
    assert (
        "patched" in plane.kubectl("patch", "-n", namespace, "dlj/bytes-lm", "--type=merge", "-p", '{"spec":{"learners":{"max":3}}}').stdout
    )
