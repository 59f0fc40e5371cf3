"""What an API server refuses, by the CRD alone: the field it blames and what it says."""

from __future__ import annotations

from typing import Any

import pytest
from builders.job_cases import (
    ACCEPTED,
    IMMUTABLE,
    OTHER_BALANCER,
    REACHED,
    REFUSED,
    SEVERAL_SHARDS,
    WITH_EFFECT,
    WITHOUT_EFFECT,
    an_ended_job,
    changed,
)
from builders.jobs import a_manifest, gpu_pool, tpu_pool, with_field
from diloco_local.memory.schema import Structural
from diloco_operator.api.crd import job_schema
from diloco_operator.api.rules import FREE_AFTER_END, RULES
from diloco_operator.kube.client import Cause

SCHEMA = job_schema()
STRUCTURAL = Structural(SCHEMA)


def refusals(obj: dict[str, Any], old: dict[str, Any] | None = None) -> list[Cause]:
    return STRUCTURAL.validate(STRUCTURAL.apply_defaults(obj), STRUCTURAL.apply_defaults(old) if old is not None else None)


@pytest.mark.parametrize(("obj", "field", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_wrong_job_is_refused_with_field_and_remedy(obj: dict[str, Any], field: str, words: str) -> None:
    causes = refusals(obj)
    assert [cause.message for cause in causes if cause.field == field and words in cause.message], causes


@pytest.mark.parametrize(("obj", "field", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals_do_not_blame_unrelated_fields(obj: dict[str, Any], field: str, words: str) -> None:
    parent = field.rpartition(".")[0]
    for cause in refusals(obj):
        assert cause.field.startswith(parent) or field.startswith(cause.field), cause
        assert "evaluation error" not in cause.message, cause


@pytest.mark.parametrize("obj", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_sensible_job_is_accepted(obj: dict[str, Any]) -> None:
    assert refusals(obj) == []


@pytest.mark.parametrize(("path", "value", "words"), IMMUTABLE.values(), ids=IMMUTABLE.keys())
def test_immutable_field_cannot_change(path: str, value: Any, words: str) -> None:
    changed = with_field(a_manifest(), path, value)
    assert refusals(changed) == []
    causes = refusals(changed, old=a_manifest())
    assert [cause.field for cause in causes if words in cause.message], causes
    assert all(path.startswith(cause.field) for cause in causes), causes


def moved_pool() -> tuple[dict[str, Any], dict[str, Any]]:
    """A job whose pool goes to another cluster, after and before that."""
    before = a_manifest(pools=[tpu_pool(cluster="tokyo")], spec=REACHED)
    return with_field(before, "spec.pools[0].cluster", "osaka"), before


def test_a_pool_stays_in_its_cluster() -> None:
    [cause] = refusals(*moved_pool())
    assert (cause.field, "add a pool with another name" in cause.message) == ("spec.pools[0].cluster", True)


@pytest.mark.slow
def test_every_rule_refuses_one_of_the_cases() -> None:
    """So that an API server that passes the cases has every rule."""
    causes = [cause for obj, _, _ in REFUSED.values() for cause in refusals(obj)]
    causes += [
        cause for path, value, _ in IMMUTABLE.values() for cause in refusals(with_field(a_manifest(), path, value), old=a_manifest())
    ]
    causes += refusals(SEVERAL_SHARDS, old=a_manifest())
    causes += refusals(*moved_pool())
    causes += refusals(a_manifest(spec=OTHER_BALANCER), old=a_manifest(spec={"syncer": {"loadBalancer": {}}}))
    causes += [cause for old, change, _ in WITHOUT_EFFECT.values() for cause in refusals(changed(old, change), old=old)]
    said = "\n".join(cause.message for cause in causes)
    assert [rule.message for rules in RULES.values() for rule in rules if rule.message not in said] == []


@pytest.mark.parametrize(("old", "change", "words"), WITHOUT_EFFECT.values(), ids=WITHOUT_EFFECT.keys())
def test_change_without_effect_is_refused_with_what_has_one(old: dict[str, Any], change: dict[str, Any], words: str) -> None:
    assert refusals(old, old=old) == []
    [cause] = refusals(changed(old, change), old=old)
    assert cause.field == ("spec.startFrom" if "spec.startFrom" in change else "spec")
    assert words in cause.message


@pytest.mark.parametrize(("old", "change"), WITH_EFFECT.values(), ids=WITH_EFFECT.keys())
def test_ended_job_takes_what_has_an_effect(old: dict[str, Any], change: dict[str, Any]) -> None:
    assert refusals(changed(old, change), old=old) == []


@pytest.mark.parametrize("change", [{"spec.retry": 1}, {"spec.learners.max": 5}, {"spec.training.steps": 4800}], ids=str)
def test_job_that_runs_takes_every_change(change: dict[str, Any]) -> None:
    old = an_ended_job("")
    assert refusals(changed(old, change), old=old) == []


@pytest.mark.parametrize(("before", "after"), [(True, True), (True, False), (False, True)], ids=["suspended", "resumed", "suspends"])
def test_queue_of_a_suspended_job_can_change(before: bool, after: bool) -> None:
    old, new = (a_manifest(spec={"queueName": queue, "suspend": suspend}) for queue, suspend in (("team-a", before), ("team-b", after)))
    assert refusals(new, old=old) == []


def test_rules_of_ended_jobs_compare_every_field_of_the_spec() -> None:
    """A new field belongs into them, or into the list of those that a job takes after its end."""
    spec = SCHEMA["properties"]["spec"]["properties"]
    for rule in RULES[""][:2]:
        assert {field for field in spec if f"self.spec.{field} == oldSelf" not in rule.rule} == {*FREE_AFTER_END, "syncer"}
        assert [field for field in spec["syncer"]["properties"] if f"self.spec.syncer.{field}" in rule.rule] == [
            "template",
            "externalAddress",
            "loadBalancer",
            "at",
        ]


def test_shards_cannot_change() -> None:
    old = STRUCTURAL.apply_defaults(a_manifest(spec={"syncer": {"shards": 2}}))
    causes = STRUCTURAL.validate(STRUCTURAL.apply_defaults(a_manifest()), old)
    assert [(cause.field, cause.message) for cause in causes] == [
        ("spec.syncer.shards", "shards is immutable; create a new job for another number")
    ]


def test_load_balancer_can_be_added_and_removed_but_not_changed() -> None:
    without, first, other = a_manifest(), a_manifest(spec={"syncer": {"loadBalancer": {}}}), a_manifest(spec=OTHER_BALANCER)
    assert refusals(first, old=without) == []
    assert refusals(without, old=first) == []
    [cause] = refusals(other, old=first)
    assert cause.field == "spec.syncer.loadBalancer"


@pytest.mark.parametrize("address", ["syncer.example.com", "203.0.113.7:7077", "[2001:db8::7]:7077", "2001:db8::7", ""])
def test_external_addresses_in_every_form_are_taken(address: str) -> None:
    assert refusals(a_manifest(spec={"syncer": {"externalAddress": address}}), old=a_manifest()) == []


def test_pool_is_found_by_name_when_pools_are_reordered() -> None:
    v5p, h100 = tpu_pool(), gpu_pool()
    assert refusals(a_manifest(pools=[h100, v5p]), old=a_manifest(pools=[v5p, h100])) == []
    causes = refusals(a_manifest(pools=[{**h100, "accelerator": "nvidia-b200"}, v5p]), old=a_manifest(pools=[v5p, h100]))
    assert [cause.field for cause in causes] == ["spec.pools[0].accelerator"]


CHANGEABLE = {
    "suspend": ("spec.suspend", True),
    "more learners": ("spec.learners.max", 8),
    "more steps": ("spec.training.steps", 4800),
    "a pool less": ("spec.pools", [tpu_pool()]),
    "another pool": ("spec.pools", [tpu_pool(), gpu_pool(), gpu_pool("b200", "nvidia-b200")]),
    "another image": ("spec.pools[0].template.spec.containers[0].image", "registry.example/train:2"),
}


@pytest.mark.parametrize(("path", "value"), CHANGEABLE.values(), ids=CHANGEABLE.keys())
def test_everything_else_can_change(path: str, value: Any) -> None:
    assert refusals(with_field(a_manifest(), path, value), old=a_manifest()) == []


def test_all_errors_are_told_at_once() -> None:
    obj = a_manifest(min=7, quorum=9, fragments=25, pools=[tpu_pool("V5P", topology="3x3"), gpu_pool(topology="2x2")])
    obj = with_field(obj, "spec.learners.stallTimeout", "soon")
    assert {cause.field for cause in refusals(obj)} >= {
        "spec.learners.min",
        "spec.learners.stallTimeout",
        "spec.training.quorum",
        "spec.training.fragments",
        "spec.pools[0].name",
        "spec.pools[0].topology",
        "spec.pools[1].topology",
    }


def test_changing_the_scale_below_the_minimum_is_refused() -> None:
    causes = refusals(with_field(a_manifest(), "spec.learners.max", 1), old=a_manifest())
    assert [cause.field for cause in causes] == ["spec.learners.min"]
