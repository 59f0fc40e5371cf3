"""What pods are judged by. The values are written out: pods carry them, and another one restarts these."""

from __future__ import annotations

from typing import Any

import pytest
from builders.jobs import Obj, a_manifest, gpu_pool, tpu_pool, with_field
from diloco.contract import Training
from diloco_operator.api.job import load
from diloco_operator.api.spec import Spec
from diloco_operator.reconcile.observe.derived import derive
from diloco_operator.reconcile.observe.template_hash import FIRST_DEFAULTS, job_file_digest, learner_hash, syncer_hash

JOB = a_manifest(
    pools=[tpu_pool(), gpu_pool(hosts=2)],
    spec={"priorityClassName": "research", "syncer": {"template": {"metadata": {"labels": {"team": "a"}}}}},
    compression="Int4",
    outerOptimizer={"learningRate": 0.7, "momentum": 0.9},
)
"""As an API server stored it: it wrote the defaults of that time into the job, of which the momentum is another one now."""
HASHES = ["1-74e8c8838c9a2087", "1-80772f9f03f7bf51", "1-1807dea51360a708"]
WITH_CLASS = ["1-386ba39f751df445", "1-c6da049e2aa55c5f", "1-5c1e271c6c60abae"]
"""Hashes of the same job, where the class counts as well."""


def spec_of(job: Obj) -> Spec:
    return load(job).spec


def hashes(job: Obj) -> list[str]:
    """Return the hashes of the learners of both pools, and of the syncer."""
    spec = spec_of(job)
    return [*map(learner_hash, spec.pools), syncer_hash(spec)]


def test_the_hashes_stay_what_they_are() -> None:
    assert hashes(JOB) == HASHES


def test_hashes_of_operators_that_counted_the_priority_class_are_known() -> None:
    derived = derive(spec_of(JOB), name="job", namespace="ns", uid="u")
    known = [*derived.known_hashes.values(), derived.known_syncer_hashes]
    assert known == [{before, now} for before, now in zip(WITH_CLASS, HASHES, strict=True)]
    assert [*derived.learner_hashes.values(), derived.syncer_hash] == HASHES


@pytest.mark.parametrize(
    ("path", "value", "changed"),
    [
        ("spec.pools[0].template.spec.containers[0].image", "other", [0]),
        ("spec.pools[0].template.metadata", {"annotations": {"a": "b"}}, [0]),
        ("spec.pools[0].topology", "2x2x1", [0]),
        ("spec.pools[0].chipsPerHost", 4, [0]),
        ("spec.pools[1].hosts", 4, [1]),
        ("spec.pools[1].acceleratorsPerHost", 4, [1]),
        ("spec.pools[1].processesPerHost", 8, [1]),
        ("spec.training.steps", 9, [2]),
        ("spec.training.grace", {"maxSteps": 2.0}, [2]),
        ("spec.startFrom", {"uri": "s3://bucket/base"}, [2]),
        ("spec.syncer.template.metadata.labels.team", "b", [2]),
        # what no pod is made from
        ("spec.pools[0].learners.max", 5, []),
        ("spec.pools[0].capacity", "Spot", []),
        ("spec.learners.max", 9, []),
        ("spec.priorityClassName", "urgent", []),
        ("spec.priorityClassName", "", []),
        ("spec.learners.stallTimeout", "9m", []),
        ("spec.syncer.storage.size", "20Gi", []),
        # what says the same
        ("spec.pools[1].processesPerHost", 1, []),
        ("spec.training.compression", "Int4", []),
        ("spec.training.overlapSteps", 2, []),
        ("spec.training.grace", {"maxSteps": 1.0}, []),
        ("spec.pools[0].hosts", None, []),
        ("spec.pools[0].template.metadata", {"labels": {}}, []),
    ],
)
def test_a_hash_changes_with_what_the_user_wrote_for_the_pod(path: str, value: Any, changed: list[int]) -> None:
    before, after = hashes(JOB), hashes(with_field(JOB, path, value))
    assert [index for index in range(3) if before[index] != after[index]] == changed


def test_every_default_of_training_has_its_first_value_on_record() -> None:
    """A field that is new needs a line in FIRST_DEFAULTS, or every syncer restarts when the operator is upgraded."""

    def paths(values: Any, at: str = "") -> set[str]:
        if not isinstance(values, dict):
            return {at}
        return {found for key, value in values.items() for found in paths(value, f"{at}.{key}")}

    assert paths(dict(FIRST_DEFAULTS)) == paths(Training(steps=1).model_dump(by_alias=True)) - {".steps"}


@pytest.mark.parametrize(
    "text",
    ["", "no JSON", "[]", "{}", '{"training": 3}', "[" * 100_000, '{"training": {"x": "\\ud800"}}', '{"training": {"x": ' + "[" * 100_000],
)
def test_text_that_is_no_job_file_has_a_digest_that_no_job_file_has(text: str) -> None:
    assert job_file_digest({"job.json": text}).startswith("unreadable-")


def test_data_with_another_key_is_no_job_file() -> None:
    assert job_file_digest({"job.json": '{"training": {}}', "more": ""}).startswith("unreadable-")
