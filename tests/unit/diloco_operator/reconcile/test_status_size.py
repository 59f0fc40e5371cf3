"""A job's object fits into etcd, whatever its units and their messages are."""

from __future__ import annotations

from typing import Any

import pytest
from builders.exploration import examples
from builders.jobs import a_job
from builders.nodes import a_gpu_node, a_tpu_node
from builders.stage import Stage
from builders.statuses import a_large_status, dump_status
from diloco.contract import MOST_PARTS
from diloco_operator.api.rules import MAX_FAILURES_ON_RECORD, MAX_PART_UNITS
from diloco_operator.api.spec import MAX_LEARNERS
from diloco_operator.api.status import Status
from diloco_operator.api.unit_figures import KEYS
from diloco_operator.reconcile.observe.job import parse_job
from diloco_operator.reconcile.observe.object_size import (
    MAX_UNITS,
    OBJECT_LIMIT,
    status_budget,
    stored_bytes,
    too_large,
)
from diloco_operator.reconcile.status.bounds import TEXT_LIMIT, bounded, clip_bytes
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.slow

TEXTS = st.text(st.sampled_from('aé<&"\\\n\x01\u2028😀'), min_size=1, max_size=40)
UNSTABLE = (*KEYS.values(), "progress")


def largest_rest(running: int, idle: int) -> int:
    """The most bytes of spec and metadata that the operator accepts for a job of so many units."""
    parts = [{"name": f"p{part}", "pools": [{"name": f"far-{part}", "units": MAX_PART_UNITS}]} for part in range(MOST_PARTS)]
    job = a_job().with_learners(1, max(1, running)).with_pool("running", max=max(1, running)).with_spec(parts=parts)
    if idle:
        job.with_pool("idle", max=idle)
    spec = parse_job(job.build()).spec
    assert spec is not None
    low, high = 0, OBJECT_LIMIT
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if not too_large(spec, middle) else (low, middle - 1)
    return low


@settings(max_examples=examples(15))
@given(
    running=st.sampled_from([0, 1, 30, 200]),
    idle=st.sampled_from([0, 1, 40]),
    message=TEXTS,
    length=st.sampled_from([1, 100, 500, 4096, 6000]),
    hosts=st.sampled_from([1, 8, 512]),
    host=st.integers(10, 253),
    refused=st.sampled_from([0, 1, 10, 30]),
    limit=st.integers(0, 1000),
)
@example(running=MAX_LEARNERS, idle=MAX_LEARNERS, message="<", length=6000, hosts=8, host=253, refused=10, limit=9)
@example(running=MAX_LEARNERS, idle=0, message="é", length=500, hosts=8, host=63, refused=0, limit=39)
@example(running=200, idle=40, message="<", length=1, hosts=1, host=23, refused=1, limit=33)  # by a few bytes per unit
@example(running=10, idle=MAX_LEARNERS, message="m", length=4096, hosts=512, host=253, refused=30, limit=9)
def test_every_status_fits_beside_the_largest_spec(
    running: int, idle: int, message: str, length: int, hosts: int, host: int, refused: int, limit: int
) -> None:
    """What identifies and counts stays; a second look changes nothing; figures change no text."""
    hosts = min(hosts, 8) if running > 30 else hosts  # more hosts than any cluster has cost only the test's time
    limit = min(limit, MAX_FAILURES_ON_RECORD // max(1, running, idle))  # a rule of the CRD
    text = (message * (length // len(message) + 1))[:length]
    status = a_large_status(running, idle, message=text, hosts=hosts, host=host, limit=limit, refused=refused, others=text)
    beside = largest_rest(running, idle)
    found = bounded(status, status_budget(beside))
    assert stored_bytes(found) <= status_budget(beside)
    assert stored_bytes(found) + beside < OBJECT_LIMIT
    for key in ("name", "pool", "state", "attempt", "endedAttempt", "restarts", "reason", "tokens", "steps", "templateHash", "since"):
        assert [unit[key] for unit in found["units"]] == [unit[key] for unit in status["units"]]
    for unit, whole in zip(found["units"], status["units"], strict=True):
        assert sum(unit["refused"].values()) == sum(whole["refused"].values())
        assert bool(unit["slice"]) == bool(whole["slice"])
        assert whole["state"] != "BackingOff" or unit["failures"] == whole["failures"]
        assert unit.get("grantorSaid") != ""
    assert [c["reason"] for c in found["conditions"]] == [c["reason"] for c in status["conditions"]]
    assert bounded(found, status_budget(beside)) == found
    small = {**status, "units": [{**unit, "tokensPerSecond": 0.0, "weight": 0.0, "staleness": 0, "tokens": 0} for unit in status["units"]]}
    again = bounded({**small, "progress": {}}, status_budget(beside))
    assert [_without_figures(unit) for unit in again["units"]] == [_without_figures(unit) for unit in found["units"]]


def _without_figures(unit: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in unit.items() if key not in UNSTABLE}


def test_each_unit_has_its_share_and_the_message_what_its_other_texts_leave() -> None:
    """A share is (1.5 MiB - 16 KiB - 232 KiB - 277 KiB) / 256, less what a unit takes at least: some 3 KiB, half of it for the slice."""
    whole = a_large_status(192, 64, message="m" * 4096, hosts=8, host=63)
    found = bounded(whole, status_budget(0))
    assert [unit["slice"] for unit in found["units"]] == [unit["slice"] for unit in whole["units"]]
    assert {len(unit["message"]) for unit in found["units"]} < set(range(1000, 3100))
    alone = bounded(a_large_status(192, 64, message="m", hosts=64, host=63), status_budget(0))
    cut = {unit["slice"] for unit in alone["units"] if unit["slice"]}
    assert len(cut) == 192  # still told apart
    assert all("…" in name for name in cut)


def test_failures_of_units_that_do_not_run_go_where_they_take_half_of_a_share() -> None:
    whole = a_large_status(1, 511, limit=39)
    found = bounded(whole, status_budget(0))
    assert [len(unit["failures"]) for unit in found["units"]] == [40, *([0] * 511)]
    few = a_large_status(1, 9, limit=39)
    assert bounded(few, status_budget(0)) == few


def test_units_without_a_slice_have_none_however_little_room_there_is() -> None:
    whole = a_large_status(0, 512)
    found = bounded(whole, status_budget(1 << 20))
    assert {unit["slice"] for unit in found["units"]} == {""}


def test_status_of_an_ordinary_job_is_left_as_it_is() -> None:
    status = a_large_status(64, 8, message="m" * 500, hosts=8)
    assert bounded(status, status_budget(20_000)) == status


def test_texts_beyond_the_limits_of_the_crd_are_cut_also_where_there_is_room() -> None:
    status = a_large_status(1, 2, message="m" * 5000, refused=30, others="p" * 9000)
    found = bounded(status, status_budget(0))
    assert len(found["units"][0]["message"].encode()) == TEXT_LIMIT
    assert [len(unit.get("grantorSaid", "").encode()) for unit in found["units"]] == [0, 0, TEXT_LIMIT]
    assert len(found["pools"][0]["message"].encode()) == 1024
    assert {len(remedy.encode()) for remedy in found["pools"][0]["remedies"]} == {512}
    assert len(found["units"][0]["refused"]) == 10
    assert dump_status(Status.model_validate(found))


@pytest.mark.parametrize(("text", "limit", "cut"), [("short", 5, "short"), ("longer", 5, "lo…"), ("<<<", 10, "<…"), ("ab", 1, "")])
def test_text_is_cut_by_the_bytes_that_it_takes_in_storage(text: str, limit: int, cut: str) -> None:
    assert clip_bytes(text, limit) == cut


def a_big_spec(stage: Stage, size: int) -> None:
    """So that little room is left for the status."""
    stage.job["metadata"]["annotations"] = {"example.com/notes": "n" * (size - stored_bytes({**stage.job, "status": {}}))}
    stage.job["metadata"]["generation"] += 1


def test_crashes_with_long_last_words_are_recorded_in_the_room_that_is_left() -> None:
    job = a_job().with_learners(1, 200).with_restarts(3, "30s").with_pool(max=200)
    stage = Stage(job, *(a_tpu_node(f"tpu-{i}") for i in range(200))).train()
    room = 900 << 10
    a_big_spec(stage, OBJECT_LIMIT - (16 << 10) - room)
    for index in range(200):
        stage.failed_before(f"v5p-{index}")
        stage.learner_exits(f"v5p-{index}", 1, 1, message="<" * 500)
    stage.step()
    assert {unit["state"] for unit in stage.status["units"]} == {"BackingOff"}
    messages = {unit["message"] for unit in stage.status["units"]}
    assert all(text.startswith("attempt 1 ended: exit 1: <<<") and text.endswith("…") for text in messages)
    assert stored_bytes(stage.job) <= OBJECT_LIMIT - (16 << 10)
    stage.step()
    assert stage.reconcile_only().status is None  # what was shortened is not written again


def test_unit_with_a_shortened_slice_goes_on_and_restarts() -> None:
    names = [f"gpu-{index}-{'n' * 240}" for index in range(8)]
    job = a_job().with_learners(1, 1).with_restarts(3, "30s").with_gpu_pool(hosts=8, max=1)
    stage = Stage(job, *(a_gpu_node(name) for name in names)).train()
    whole = stage.unit("h100-0")["slice"]
    shortened = bounded(stage.status, 3 << 10)
    assert shortened["units"][0]["slice"] != whole
    stage.job["status"] = shortened
    stage.restart_operator()
    stage.all_contribute()
    stage.settle()
    assert stage.unit("h100-0")["slice"] == whole
    stage.job["status"] = bounded(stage.status, 3 << 10)
    stage.learner_exits("h100-0", 1, 1)
    stage.settle()
    stage.job["status"] = {**stage.status, "units": [{**stage.unit("h100-0"), "slice": shortened["units"][0]["slice"]}]}
    stage.kubelets_finish_deletions()
    stage.advance(30)
    stage.settle()
    assert (stage.unit("h100-0")["state"], stage.unit("h100-0")["attempt"]) == ("Starting", 2)


def test_spec_that_leaves_no_room_for_the_status_is_refused_by_name() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0")).train()
    a_big_spec(stage, OBJECT_LIMIT - (300 << 10))
    stage.step()
    accepted = stage.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert "spec: spec and metadata take 1236 KiB" in accepted["message"]
    assert "Make the templates smaller" in accepted["message"]
    assert stage.live_attempts()


def test_no_more_units_start_than_status_can_hold() -> None:
    """Every one of them failed for good, so that new ones are tried until the record is full."""
    job = a_job().with_learners(1, MAX_LEARNERS)
    for pool in ("a", "b", "c"):
        job.with_pool(pool, max=MAX_LEARNERS)
    derived = parse_job(job.build()).derived
    assert derived is not None
    failed = [
        {"name": f"{pool}-{i}", "pool": pool, "state": "Failed", "attempt": 1, "endedAttempt": 1, "reason": "RestartsExhausted"}
        | {"templateHash": derived.learner_hashes[pool]}
        for pool in ("a", "b")
        for i in range(MAX_LEARNERS)
    ]
    stage = Stage(job.with_status(units=failed[:-1]), a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    stage.settle()
    assert len(stage.status["units"]) == MAX_UNITS - 1  # three pools share the one place that is left: none gets it
    assert stage.condition("Failed")["reason"] == "RestartsExhausted"


def test_other_objects_of_the_largest_jobs_stay_far_below_a_mebibyte() -> None:
    """Secrets hold 64 units each; the job file names no unit."""
    job = a_job("j" * 32).with_learners(1, 130).with_pool("fifteen-letters", max=130)
    job.with_training(checkpoint={"uri": "s3://" + "b" * 1000})
    stage = Stage(job, *(a_tpu_node(f"tpu-{i}") for i in range(130))).train()
    sizes = {name: stored_bytes(secret) for name, secret in stage.secrets.items()}
    assert len([name for name in sizes if "learners" in name]) == 3
    assert max(sizes.values()) < 128 << 10  # also with a certificate of an earlier attempt beside each
    assert stored_bytes(stage.children["ConfigMap"]) < 16 << 10
