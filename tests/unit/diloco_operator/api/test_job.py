from __future__ import annotations

import datetime
import json

import pytest
from builders.jobs import a_manifest, gpu_pool, tpu_pool, with_field
from builders.statuses import dump_status
from diloco_local.memory.schema import Structural
from diloco_operator.api.crd import job_schema
from diloco_operator.api.job import InvalidJob, dump, load
from diloco_operator.api.status import Condition, ConditionStatus, LearnersStatus, PoolStatus, Progress, Status, UnitState, UnitStatus


def full_status() -> Status:
    return Status(
        observed_generation=3,
        conditions=(
            Condition(
                type="Training",
                status=ConditionStatus.TRUE,
                reason="QuorumContributing",
                message="4 of 4 learners contribute",
                observed_generation=3,
                last_transition_time=1_795_000_000.0,
            ),
        ),
        progress=Progress(step=812, steps=2400, tokens=41_574_400, loss=2.31, held_out_loss=2.4, estimated_completion=1_795_009_000.5),
        learners=LearnersStatus(desired=4, placed=4, contributing=4, min=2, max=6),
        units=(
            UnitStatus(
                name="v5p-0",
                pool="v5p",
                slice="np-v5p-1",
                state=UnitState.TRAINING,
                attempt=2,
                restarts=1,
                tokens_per_second=14100.0,
                weight=0.31,
                staleness=3,
                since=1_795_000_001.0,
                recover_seconds=4.25,
                failures=(1_794_999_000.25,),
                ended_attempt=1,
            ),
        ),
        pools=(PoolStatus(name="v5p", placed=2, contributing=2),),
    )


def test_job_survives_the_way_to_json_and_back() -> None:
    original = load(with_field(a_manifest(pools=[tpu_pool(min=1), gpu_pool(hosts=2)], quorum=2), "spec.learners.stallTimeout", "1h30m"))
    original = original.model_copy(update={"status": full_status()})
    assert load(json.loads(json.dumps(dump(original)))) == original


def test_dumped_job_is_what_the_schema_accepts() -> None:
    obj = dump(load(a_manifest()).model_copy(update={"status": full_status()}))
    schema = Structural(job_schema())
    filled = schema.apply_defaults(obj)
    assert schema.completed(obj) == filled, "no field is unknown"
    assert schema.validate(filled) == []


def test_defaults_of_the_types_are_the_defaults_of_the_crd() -> None:
    written = a_manifest(pools=[tpu_pool(), gpu_pool()])
    assert load(written) == load(Structural(job_schema()).apply_defaults(written))


def test_defaults_are_those_of_the_specification() -> None:
    spec = load(a_manifest()).spec
    assert (spec.suspend, spec.managed_by, spec.priority_class_name) == (False, "diloco.dev/operator", "")
    restart = spec.learners.restart
    assert (restart.limit, restart.window, restart.backoff.initial, restart.backoff.max) == (5, 3600.0, 5.0, 300.0)
    timeouts = spec.learners.timeouts
    assert (timeouts.schedule, timeouts.pull, timeouts.start, timeouts.join) == (30.0, 1800.0, 600.0, 600.0)
    assert spec.learners.stall_timeout == 120.0
    training = spec.training
    assert (training.sync_interval, training.fragments, training.overlap_steps, training.quorum) == (24, 24, 2, 1)
    assert (training.grace.max_steps, training.grace.safety_factor) == (1.0, 0.8)
    assert (training.merge.method, training.merge.embeddings) == ("RDA", "Average")
    assert (training.outer_optimizer.learning_rate, training.outer_optimizer.momentum) == (0.6, 0.3)
    assert (training.compression, training.checkpoint.every_steps, training.checkpoint.keep) == ("BFloat16", 240, 3)
    assert (spec.syncer.shards, spec.syncer.storage.size, spec.syncer.storage.class_name) == (1, "10Gi", "")


def test_a_time_to_join_is_that_of_the_job() -> None:
    assert load(with_field(a_manifest(), "spec.learners.timeouts", {"join": "30m"})).spec.learners.timeouts.join == 1800.0


def test_status_is_written_in_camel_case_without_absent_fields() -> None:
    status = dump_status(full_status())
    assert status["progress"]["heldOutLoss"] == 2.4
    assert status["progress"]["estimatedCompletion"] == f"{_utc(1_795_009_000)}.500Z"
    assert status["conditions"][0]["lastTransitionTime"] == f"{_utc(1_795_000_000)}Z"
    assert status["units"][0]["recoverSeconds"] == 4.25
    assert "notBefore" not in status["units"][0]


def _utc(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")


def test_fields_of_a_newer_version_are_ignored() -> None:
    assert load(with_field(a_manifest(), "spec.learners.spares", 2)) == load(a_manifest())


def test_unreadable_object_names_every_field() -> None:
    obj = with_field(with_field(a_manifest(), "spec.learners.stallTimeout", "soon"), "spec.pools[1].learners", {})
    with pytest.raises(InvalidJob) as caught:
        load(obj)
    assert [cause.field for cause in caught.value.causes] == ["spec.learners.stallTimeout", "spec.pools[1].learners.max"]
    assert "bytes-lm" in str(caught.value)
    assert "such as 30s, 10m or 1h30m" in str(caught.value)


def test_pool_and_condition_are_found_by_name() -> None:
    parsed = load(a_manifest()).model_copy(update={"status": full_status()})
    pool = parsed.pool("h100")
    assert pool is not None
    assert pool.accelerator == "nvidia-h100-80gb"
    assert parsed.pool("b200") is None
    condition = parsed.condition("Training")
    assert condition is not None
    assert condition.reason == "QuorumContributing"
    assert parsed.condition("Failed") is None


def test_shape_of_a_pool_tells_hosts_and_accelerators() -> None:
    v5p, h100 = load(a_manifest(pools=[tpu_pool(topology="4x4x4"), gpu_pool(hosts=2)])).spec.pools
    assert (v5p.shape.hosts, v5p.shape.accelerators_per_host, v5p.shape.resource) == (16, 4, "google.com/tpu")
    assert (h100.shape.hosts, h100.shape.accelerators_per_host, h100.shape.resource) == (2, 8, "nvidia.com/gpu")
