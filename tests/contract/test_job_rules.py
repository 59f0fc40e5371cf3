"""DiLoCoJobs: a real server accepts and rejects the same ones as the in-memory server of the tests, and protects their status."""

from __future__ import annotations

import copy
import itertools
from datetime import UTC, datetime

import pytest
from builders.job_cases import ACCEPTED, IMMUTABLE, REFUSED, SEVERAL_SHARDS, WITH_EFFECT, WITHOUT_EFFECT, changed
from builders.jobs import a_manifest, tpu_pool, with_field
from builders.statuses import a_large_status
from diloco.contract import MOST_PARTS
from diloco_local.memory.schema import Structural
from diloco_operator.api import names
from diloco_operator.api.crd import build_crd, job_schema
from diloco_operator.api.rules import MAX_FAILURES_ON_RECORD, MAX_PART_UNITS, RULES
from diloco_operator.api.spec import MAX_LEARNERS
from diloco_operator.kube.client import Cause, Client, Conflict, Invalid, Obj
from diloco_operator.operator.events import EventRecorder, Subject
from diloco_operator.operator.executor import Executor
from diloco_operator.plan import Plan, ReplaceStatus
from diloco_operator.reconcile.observe.job import parse_job
from diloco_operator.reconcile.observe.object_size import MAX_UNITS, status_budget, stored_bytes
from diloco_operator.reconcile.status.bounds import bounded

from .conftest import define

_SCHEMA = Structural(job_schema())

# Ways in which a field can be wrong: some keep a server from evaluating rules, some do not, some break a rule.
_MISTAKES: dict[str, object] = {
    "spec.learners.min": 0,  # too small, and rules compare it
    "spec.learners.stallTimeout": "soon",
    "spec.learners.restart.limit": -1,
    "spec.pools": [],
    "spec.pools[0].accelerator": "TPU v0",
    "spec.pools[0].topology": "2x2",
    "spec.pools[0].learners.max": 0,
    "spec.pools[1].template": {},
    "spec.training.steps": ...,
    "spec.training.fragments": 0,
    "spec.training.overlapSteps": 24,
    "spec.training.outerOptimizer.momentum": 1,
    "spec.syncer.shards": 0,
    "spec.suspend": "yes",
}


@pytest.fixture(autouse=True)
async def _definition(client: Client) -> None:
    await define(client, build_crd())


def _in(namespace: str, obj: Obj, name: str = "") -> Obj:
    """A copy of a job, for `namespace`."""
    placed = copy.deepcopy(obj)
    placed["metadata"] |= {"namespace": namespace, **({"name": name} if name else {})}
    return placed


async def _causes(client: Client, obj: Obj, *, old: Obj | None = None) -> list[Cause]:
    """The server's errors for a create of `obj`, or for an update from `old` to `obj`."""
    try:
        if old is None:
            made = await client.create(names.DILOCO_JOBS, obj)
            await client.delete(names.DILOCO_JOBS, made["metadata"]["namespace"], made["metadata"]["name"])
        else:
            obj["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
            await client.update(names.DILOCO_JOBS, obj)
    except Invalid as error:
        return error.causes
    return []


def _predicted(obj: Obj, old: Obj | None = None) -> list[Cause]:
    """The errors of the definition's compiled schema, without a server."""
    before = _SCHEMA.apply_defaults(old) if old is not None else None
    return _SCHEMA.violations(_SCHEMA.apply_defaults(obj), before)


async def test_every_wrong_job_is_rejected_for_its_wrong_fields_and_by_a_rule_with_its_message(client: Client, namespace: str) -> None:
    wrong: dict[str, object] = {}
    for what, (obj, field, words) in REFUSED.items():
        causes = await _causes(client, _in(namespace, obj))
        # A server reports an error of the scaled number twice, once under the path of the definition: `.spec.…`.
        reported = {cause.field.removeprefix(".") for cause in causes}
        expected = {cause.field for cause in _predicted(obj)}
        if field not in reported or reported != expected:
            wrong[what] = (field, reported, expected)
        messages = [cause.message for cause in causes if cause.field == field]
        by_a_rule = any(words in rule.message for rules in RULES.values() for rule in rules)  # otherwise the message is the schema's
        if by_a_rule and not any(words in message for message in messages):
            wrong[what] = (words, messages)
    assert not wrong, wrong


async def test_two_mistakes_are_reported_as_predicted(client: Client, namespace: str) -> None:
    wrong = {}
    for one, other in itertools.combinations(_MISTAKES, 2):
        if one.startswith("spec.pools[") != other.startswith("spec.pools[") and "spec.pools" in (one, other):
            continue  # one of a pool, and no pools
        obj = with_field(with_field(a_manifest(), one, _MISTAKES[one]), other, _MISTAKES[other])
        reported = {cause.field.removeprefix(".") for cause in await _causes(client, _in(namespace, obj))}
        if reported != (expected := {cause.field for cause in _predicted(obj)}):
            wrong[one, other] = (reported, expected)
    assert not wrong, wrong


async def test_every_sensible_job_is_accepted(client: Client, namespace: str) -> None:
    assert {what: reported for what, obj in ACCEPTED.items() if (reported := await _causes(client, _in(namespace, obj)))} == {}


async def test_what_is_immutable_cannot_change(client: Client, namespace: str) -> None:
    made = await client.create(names.DILOCO_JOBS, _in(namespace, a_manifest()))
    for path, value, words in IMMUTABLE.values():
        reported = await _causes(client, with_field(made, path, value), old=made)
        assert [cause for cause in reported if words in cause.message], (path, reported)
        assert {cause.field for cause in reported} == {
            cause.field for cause in _predicted(with_field(a_manifest(), path, value), a_manifest())
        }
    assert await _causes(client, {**made, "spec": {**made["spec"], **SEVERAL_SHARDS["spec"]}}, old=made)


async def _ended(client: Client, namespace: str, obj: Obj, name: str) -> Obj:
    """The job as the server stores it, with its status."""
    await client.create(names.DILOCO_JOBS, _in(namespace, obj, name))
    return await client.patch(names.DILOCO_JOBS, namespace, name, {"status": obj["status"]}, subresource="status", field_manager="test")


async def test_changes_without_effect_are_refused(client: Client, namespace: str) -> None:
    wrong = {}
    for index, (what, (obj, change, words)) in enumerate(WITHOUT_EFFECT.items()):
        made = await _ended(client, namespace, obj, f"job-{index}")
        reported = await _causes(client, changed(made, change), old=made)
        blamed = ["spec.startFrom" if "spec.startFrom" in change else "spec"]
        if [cause.field for cause in reported] != blamed or words not in reported[0].message:
            wrong[what] = reported
    assert not wrong, wrong


async def test_ended_jobs_take_what_has_an_effect(client: Client, namespace: str) -> None:
    wrong = {}
    for index, (what, (obj, change)) in enumerate(WITH_EFFECT.items()):
        made = await _ended(client, namespace, obj, f"job-{index}")
        if reported := await _causes(client, changed(made, change), old=made):
            wrong[what] = reported
    assert not wrong, wrong


async def test_status_of_a_deleted_job_is_not_written_over_its_successor(client: Client, namespace: str) -> None:
    obj = _in(namespace, a_manifest())
    name = obj["metadata"]["name"]
    first = await client.create(names.DILOCO_JOBS, obj)
    await client.delete(names.DILOCO_JOBS, namespace, name)
    await client.create(names.DILOCO_JOBS, obj)
    subject = Subject(namespace, name, first["metadata"]["uid"])
    plan = Plan(status=ReplaceStatus(names.DILOCO_JOBS, namespace, name, subject.uid, {"observedGeneration": 1}))
    executor = Executor(client, EventRecorder(client, lambda: datetime.now(UTC)))
    result = await executor.execute(subject, plan, version=first["metadata"]["resourceVersion"])
    assert [type(failure.error) for failure in result.failures] == [Conflict]
    assert "status" not in await client.get(names.DILOCO_JOBS, namespace, name)


async def test_the_largest_status_of_the_largest_job_is_stored(client: Client, namespace: str) -> None:
    """Every unit backs off or was given up, after as many failures as the rules allow and with the longest of messages."""
    limit = MAX_FAILURES_ON_RECORD // MAX_LEARNERS
    obj = a_manifest(max=MAX_LEARNERS, pools=[tpu_pool("fifteen-letters", max=MAX_LEARNERS), tpu_pool("other", max=MAX_LEARNERS)])
    parts = [{"name": f"p{part}", "pools": [{"name": f"far-{part}", "units": MAX_PART_UNITS}]} for part in range(MOST_PARTS)]
    obj["spec"] |= {"parts": parts, "syncer": {**obj["spec"].get("syncer", {}), "externalAddress": "syncer.example.com"}}
    obj["metadata"]["annotations"] = {"example.com/notes": "n" * 120_000}
    made = await client.create(names.DILOCO_JOBS, _in(namespace, with_field(obj, "spec.learners.restart.limit", limit)))
    job = parse_job(made)
    assert job.spec is not None, job.problems
    whole = a_large_status(
        MAX_LEARNERS, MAX_UNITS - MAX_LEARNERS, message="<" * 4096, hosts=8, host=63, limit=limit, refused=10, others="<" * 8000
    )
    status = bounded(whole, status_budget(job.bytes_beside_status))
    subject = Subject(namespace, made["metadata"]["name"], made["metadata"]["uid"])
    executor = Executor(client, EventRecorder(client, lambda: datetime.now(UTC)))
    plan = Plan(status=ReplaceStatus(names.DILOCO_JOBS, namespace, subject.name, subject.uid, status))
    result = await executor.execute(subject, plan, version=made["metadata"]["resourceVersion"])
    assert result.failures == []
    stored = await client.get(names.DILOCO_JOBS, namespace, subject.name)
    assert stored["status"] == status
    assert stored_bytes(stored) > 1_300_000  # the test is about an object that is nearly as large as etcd takes
