from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from builders.scripted_api import ScriptedApi
from builders.virtual_time import run_virtual
from diloco_operator.api.names import DILOCO_JOBS, EVENTS, FIELD_MANAGER, PODS, SECRETS
from diloco_operator.kube.client import AlreadyExists, ApiError, Conflict, NotFound, Obj, Unavailable
from diloco_operator.operator.events import EventRecorder, Subject
from diloco_operator.operator.executor import READY, ExecutionResult, Executor, RequestLimits
from diloco_operator.operator.rejected_writes import RejectedWrites, rejected_write_events
from diloco_operator.plan import Create, Delete, Event, IssueCertificates, Patch, Plan, PodCheck, ReplaceStatus

JOB = Subject("ns", "lm", "uid-lm")
NOW = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)


def pod(name: str, owner: str = "uid-lm") -> Obj:
    return {"metadata": {"namespace": "ns", "name": name, "ownerReferences": [{"uid": owner}]}}


def create(name: str) -> Create:
    return Create(PODS, pod(name))


def secret(name: str, *, wave: int = 1, there: bool = False) -> IssueCertificates:
    return IssueCertificates({"metadata": {"namespace": "ns", "name": name}}, "uid-lm", uid="uid-secret" if there else "", wave=wave)


async def made(wanted: Sequence[IssueCertificates], seconds: float) -> AsyncIterator[Create | Patch]:
    """Writes of Secrets; each takes so long to make."""
    for one in wanted:
        await asyncio.sleep(seconds)
        if one.uid:
            yield Patch(SECRETS, "ns", one.obj["metadata"]["name"], {"metadata": {"resourceVersion": "7"}}, wave=one.wave)
        else:
            yield Create(SECRETS, one.obj, wave=one.wave, fresh=True)


def delete(name: str) -> Delete:
    return Delete(PODS, "ns", name, uid=f"uid-{name}")


STATUS = ReplaceStatus(DILOCO_JOBS, "ns", "lm", "uid-lm", {"observedGeneration": 1})
EVENT = Event("Normal", "UnitStarted", "v5p-0 started")


class Run:
    """A plan carried out against a script; `answers` maps (verb, name) to what the API raises or returns."""

    def __init__(
        self,
        plan: Plan,
        answers: dict[tuple[str, str], Any] | None = None,
        concurrency: int = 8,
        *,
        postpone: bool = False,
        making: float = 0.0,
        version: str = "",
    ) -> None:
        answers = answers or {}
        self.api = ScriptedApi(handle=lambda verb, args: answers.get((verb, name_of(args))))
        self.unsent: list[str] = []

        async def carry_out() -> ExecutionResult:
            client: Any = self.api
            events = EventRecorder(client, lambda: NOW)
            executor = Executor(client, events, RequestLimits(concurrency))
            result = await executor.execute(
                JOB,
                plan,
                version=version,
                unsent=lambda resource, namespace, name: self.unsent.append(name),
                postpone=lambda: postpone,
                certificates=made(plan.certificates, making),
            )
            writing = asyncio.create_task(events.run())
            await events.drained()
            writing.cancel()
            return result

        self.result = run_virtual(carry_out())

    @property
    def did(self) -> list[str]:
        return [f"{verb} {args[0].kind} {name_of(args)}".strip() for verb, args in self.api.calls if args[0] is not EVENTS]

    @property
    def events(self) -> list[tuple[str, tuple[Any, ...]]]:
        return [(verb, args) for verb, args in self.api.calls if args[0] is EVENTS]


def name_of(arguments: tuple[Any, ...]) -> str:
    return str(arguments[1]["metadata"]["name"] if isinstance(arguments[1], dict) else arguments[2])


def rejected(code: int = 403, kind: Callable[..., ApiError] = ApiError) -> ApiError:
    return kind(code, "Forbidden", "exceeded quota: pods=10")


def test_a_status_that_may_wait_is_left_to_the_next_reconcile_with_all_that_follows_it() -> None:
    plan = Plan(creates=(create("a"),), status=replace(STATUS, may_wait=True), deletes=(delete("old"),), events=(EVENT,))
    later = Run(plan, postpone=True)
    assert later.result.postponed
    assert later.result.ok
    assert later.did == ["create Pod a"]
    assert later.unsent == ["old"]  # its deletion is not expected
    assert not later.events
    now = Run(plan, postpone=False)
    assert not now.result.postponed
    assert now.did == ["create Pod a", "update DiLoCoJob lm", "delete Pod old"]


def test_a_status_that_may_not_wait_is_written_in_any_case() -> None:
    run = Run(Plan(status=STATUS, deletes=(delete("old"),)), postpone=True)
    assert run.did == ["update DiLoCoJob lm", "delete Pod old"]


def test_stages_run_in_order_creates_status_deletes_events() -> None:
    run = Run(Plan(creates=(create("a"), create("b")), status=STATUS, deletes=(delete("old"),), events=(EVENT,)))
    assert run.did == ["create Pod a", "create Pod b", "update DiLoCoJob lm", "delete Pod old"]
    assert len(run.events) == 1
    assert run.result.ok
    assert (run.result.created, run.result.deleted) == (2, 1)


def test_dry_runs_come_last_and_each_says_whether_it_was_admitted() -> None:
    plan = Plan(status=STATUS, deletes=(delete("old"),), pod_checks=(PodCheck("a", pod("p")), PodCheck("b", pod("q"))))
    run = Run(plan, {("dry run", "q"): rejected()})
    assert run.did == ["update DiLoCoJob lm", "delete Pod old", "dry run Pod p", "dry run Pod q"]
    assert [(check.pool, str(failure or "")) for check, failure in run.result.answers] == [
        ("a", ""),
        ("b", "dry run of Pod ns/q: exceeded quota: pods=10"),
    ]
    assert run.result.ok, "a dry run that is refused is no failure of the plan"


def test_creates_run_side_by_side_but_not_more_than_allowed() -> None:
    run = Run(Plan(creates=tuple(create(f"p{i}") for i in range(20))), concurrency=4)
    assert run.api.busiest == 4
    assert run.result.created == 20


def test_namespaces_that_make_room_have_one_request_at_a_time_each() -> None:
    async def scenario() -> tuple[int, int]:
        api = ScriptedApi()
        client: Any = api
        crowds = {"crowd", "other-crowd"}
        executor = Executor(client, EventRecorder(client, lambda: NOW), crowds_others=lambda job: job.namespace in crowds)
        plan = Plan(creates=tuple(create(f"p{i}") for i in range(5)))

        async def busiest(*namespaces: str) -> int:
            api.busiest = 0
            await asyncio.gather(*(executor.execute(Subject(name, f"lm-{i}", f"uid-{i}"), plan) for name in namespaces for i in range(3)))
            return api.busiest

        return await busiest("crowd", "other-crowd"), await busiest("quiet")

    assert run_virtual(scenario()) == (2, 15)


def test_namespaces_that_make_room_give_way_before_each_request() -> None:
    async def scenario() -> tuple[list[str], int]:
        api = ScriptedApi()
        client: Any = api
        others_are_done = asyncio.Event()
        gave_way: list[str] = []

        async def give_way(job: Subject) -> None:
            gave_way.append(job.namespace)
            await others_are_done.wait()

        executor = Executor(
            client, EventRecorder(client, lambda: NOW), crowds_others=lambda job: job.namespace == "crowd", give_way=give_way
        )
        plan = Plan(creates=tuple(create(f"p{i}") for i in range(3)))
        crowd = asyncio.create_task(executor.execute(Subject("crowd", "lm", "uid"), plan))
        await executor.execute(Subject("quiet", "lm", "uid"), plan)
        sent_meanwhile = len(api.calls)
        others_are_done.set()
        await crowd
        return gave_way, sent_meanwhile

    assert run_virtual(scenario()) == (["crowd"] * 3, 3)


def test_status_is_replaced_in_exactly_this_version_of_this_job() -> None:
    run = Run(Plan(status=STATUS), version="7")
    [(verb, (resource, body, subresource, manager))] = run.api.calls
    assert (verb, resource, subresource, manager) == ("update", DILOCO_JOBS, "status", FIELD_MANAGER)
    assert body["metadata"] == {"namespace": "ns", "name": "lm", "uid": "uid-lm", "resourceVersion": "7"}
    assert body["status"] == {"observedGeneration": 1}


def test_a_plan_without_status_writes_none() -> None:
    assert Run(Plan(creates=(create("a"),))).did == ["create Pod a"]


def test_a_name_taken_by_the_same_job_is_success() -> None:
    run = Run(
        Plan(creates=(create("a"),), status=STATUS),
        {("create", "a"): AlreadyExists(409, "AlreadyExists", "exists"), ("get", "a"): pod("a")},
    )
    assert run.result.ok
    assert run.result.existed == 1
    assert "update DiLoCoJob lm" in run.did


def test_a_name_taken_by_a_foreign_object_is_an_error_that_names_it() -> None:
    run = Run(
        Plan(creates=(create("a"),), status=STATUS),
        {("create", "a"): AlreadyExists(409, "AlreadyExists", "exists"), ("get", "a"): pod("a", owner="somebody")},
    )
    [failure] = run.result.failures
    assert "Pod ns/a exists and does not belong to this job" in str(failure)  # what to do, the status adds
    assert not failure.transient
    assert run.unsent == ["a"]


def test_a_pod_without_the_accelerators_of_its_unit_is_foreign_whatever_owner_it_names() -> None:
    container = {"name": "learner", "resources": {"limits": {"google.com/tpu": "4"}}}
    wanted = Create(PODS, {**pod("a"), "spec": {"containers": [container]}})
    run = Run(Plan(creates=(wanted,)), {("create", "a"): AlreadyExists(409, "AlreadyExists", "exists"), ("get", "a"): pod("a")})
    [failure] = run.result.failures
    assert "does not belong to this job" in str(failure)
    assert failure.write == wanted


def test_a_name_freed_again_meanwhile_is_tried_again_later() -> None:
    run = Run(Plan(creates=(create("a"),)), {("create", "a"): AlreadyExists(409, "AlreadyExists", "exists")})
    assert isinstance(run.result.failures[0].error, NotFound)


def test_status_and_deletes_wait_for_every_create() -> None:
    run = Run(
        Plan(creates=(create("a"), create("b")), status=STATUS, deletes=(delete("old"),), events=(EVENT,)), {("create", "a"): rejected()}
    )
    assert run.did == ["create Pod a", "create Pod b"]
    assert run.events == []
    assert not run.result.failures[0].transient
    assert sorted(run.unsent) == ["a", "old"]


def test_a_write_whose_credentials_did_not_count_is_not_rejected() -> None:
    """As while a token rotates: nothing is wrong with the object."""
    plan, known = Plan(creates=(create("a"), create("b"))), RejectedWrites()
    result = Run(plan, {("create", "a"): ApiError(401, "Unauthorized", "Unauthorized"), ("create", "b"): rejected()}).result
    known.note(1, plan, result, 0.0)
    assert known.by_object.keys() == {("Pod", "b")}
    assert len(rejected_write_events(result)) == 1


def test_a_wave_of_creates_begins_when_those_before_it_are_there() -> None:
    learners = (Create(PODS, pod("l0"), wave=2), Create(PODS, pod("l1"), wave=2))
    run = Run(Plan(creates=(*learners, Create(PODS, pod("syncer"), wave=1), create("config"))))
    assert run.did == ["create Pod config", "create Pod syncer", "create Pod l0", "create Pod l1"]


def test_no_wave_begins_after_one_that_failed() -> None:
    plan = Plan(creates=(create("config"), Create(PODS, pod("syncer"), wave=1), Create(PODS, pod("l0"), wave=2)), status=STATUS)
    run = Run(plan, {("create", "config"): rejected()})
    assert run.did == ["create Pod config"]
    assert sorted(run.unsent) == ["config", "l0", "syncer"]


def test_deletes_wait_for_the_status() -> None:
    run = Run(Plan(status=STATUS, deletes=(delete("old"),)), {("update", "lm"): Unavailable(503, "Unavailable", "away")})
    assert run.did == ["update DiLoCoJob lm"]
    assert run.result.failures[0].transient
    assert run.unsent == ["old"]


def test_what_is_gone_or_replaced_is_deleted() -> None:
    run = Run(
        Plan(deletes=(delete("a"), delete("b"), delete("c"))),
        {("delete", "a"): NotFound(404, "NotFound", "no"), ("delete", "b"): Conflict(409, "Conflict", "uid differs")},
    )
    assert run.result.ok
    assert (run.result.deleted, run.result.gone) == (1, 2)


def test_deletes_carry_the_uid_they_were_decided_on() -> None:
    [(_, arguments)] = Run(Plan(deletes=(Delete(PODS, "ns", "a", uid="u1", grace_seconds=0),))).api.calls
    assert arguments == (PODS, "ns", "a", 0, "u1")


def test_no_answer_is_unavailable() -> None:
    async def never(*_: Any, **__: Any) -> Obj:
        await asyncio.Event().wait()
        raise AssertionError

    async def carry_out() -> ExecutionResult:
        client: Any = ScriptedApi()
        client.create = never
        return await Executor(client, EventRecorder(client, lambda: NOW)).execute(JOB, Plan(creates=(create("a"),)))

    [failure] = run_virtual(carry_out()).failures
    assert failure.transient
    assert "no answer within 35 s" in str(failure)


def test_an_event_names_the_job_and_its_source() -> None:
    [(verb, (_, event))] = Run(Plan(events=(EVENT,))).events
    assert verb == "create"
    assert event["involvedObject"]["uid"] == "uid-lm"
    assert (event["type"], event["reason"], event["message"]) == ("Normal", "UnitStarted", "v5p-0 started")
    assert event["firstTimestamp"] == "2026-11-20T21:00:00Z"
    assert event["source"]["component"] == FIELD_MANAGER


def test_different_messages_are_different_events() -> None:
    names = {Run(Plan(events=(Event("Normal", "UnitStarted", message),))).events[0][1][1]["metadata"]["name"] for message in ("a", "b")}
    assert len(names) == 2


def test_an_event_that_cannot_be_written_fails_nothing() -> None:
    run = Run(Plan(events=(EVENT,)))
    name = run.events[0][1][1]["metadata"]["name"]
    assert Run(Plan(events=(EVENT,)), {("create", name): Unavailable(503, "Unavailable", "away")}).result.ok


def test_a_plan_does_not_wait_for_events() -> None:
    async def carry_out() -> int:
        client: Any = ScriptedApi()
        await Executor(client, EventRecorder(client, lambda: NOW)).execute(JOB, Plan(creates=(create("a"),), events=(EVENT,)))
        return len(client.calls)

    assert run_virtual(carry_out()) == 1


def test_certificates_take_their_turn_among_the_waves() -> None:
    creates = (Create(PODS, pod("a")), Create(PODS, pod("c"), wave=2))
    run = Run(Plan(creates=creates, certificates=(secret("b", there=True),), status=STATUS), {("patch", "b"): pod("b")})
    assert run.did == ["create Pod a", "patch Secret b", "create Pod c", "update DiLoCoJob lm"]
    assert run.result.patched == [(SECRETS, pod("b"))]


def test_a_pod_waits_for_its_own_certificate_and_not_for_those_of_others() -> None:
    creates = tuple(Create(PODS, pod(name), after=after) for name, after in (("a", "one"), ("b", "two"), ("c", "elsewhere"), ("d", "two")))
    run = Run(Plan(creates=creates, certificates=(secret("one", wave=0), secret("two", wave=0, there=True)), status=STATUS), making=1.0)
    # A certificate takes a second, a request much less. "c" waits for nothing in this plan.
    assert run.did == [
        "create Pod c",
        *("create Secret one", "create Pod a"),
        *("patch Secret two", "create Pod b", "create Pod d"),
        "update DiLoCoJob lm",
    ]
    assert run.result.created == 5


def test_certificates_are_made_no_further_ahead_than_the_pods_need_them() -> None:
    units, secrets = READY // 2, range(8)
    creates = tuple(Create(PODS, pod(f"{number}-{unit}"), after=str(number)) for number in secrets for unit in range(units))
    run = Run(Plan(creates=creates, certificates=tuple(secret(str(number), wave=0) for number in secrets)), concurrency=64)
    for number in secrets:
        before = run.did[: run.did.index(f"create Secret {number}")]
        made = sum(each.startswith("create Pod") for each in before)
        assert number * units - made <= READY, "what is not needed yet is not made"
        assert number * units - made > 0 or number <= 1, "nothing waits for certificates once it has got going"
    assert run.result.created == len(secrets) + len(creates)


def test_only_the_metadata_of_an_answer_is_requested() -> None:
    plan = Plan(creates=(create("a"),), certificates=(secret("b", there=True),), status=STATUS)
    run = Run(plan, {("patch", "b"): pod("b")})
    assert run.did == ["create Pod a", "patch Secret b", "update DiLoCoJob lm"]
    assert run.api.metadata_only == [True, True, True]


def test_without_its_certificate_a_pod_is_not_made_and_others_are() -> None:
    creates = tuple(Create(PODS, pod(name), after=after) for name, after in (("a", "one"), ("b", "two")))
    certify = (secret("one", wave=0), secret("two", wave=0))
    run = Run(Plan(creates=creates, certificates=certify, status=STATUS), {("create", "one"): rejected()})
    assert run.did == ["create Secret one", "create Secret two", "create Pod b"]
    assert run.unsent == ["one", "a"]
    assert [str(failure) for failure in run.result.failures] == ["create Secret ns/one: exceeded quota: pods=10"]


def test_after_a_failed_wave_the_certificates_of_the_next_are_not_expected() -> None:
    plan = Plan(creates=(create("a"),), certificates=(secret("new"), secret("old", there=True)), status=STATUS)
    run = Run(plan, {("create", "a"): rejected()})
    assert run.did == ["create Pod a"]
    assert run.unsent == ["a", "new"]


@pytest.mark.parametrize("error", [Conflict(409, "Conflict", "changed"), NotFound(404, "NotFound", "gone")])
def test_what_changed_since_the_decision_is_reconciled_again(error: ApiError) -> None:
    creates = (Create(PODS, pod("c"), wave=2),)
    run = Run(Plan(creates=creates, certificates=(secret("b", there=True),), status=STATUS), {("patch", "b"): error})
    assert run.did == ["patch Secret b"]
    assert [failure.transient for failure in run.result.failures] == [True]
    assert run.unsent == ["c"]


def test_what_was_made_for_one_plan_is_not_replaced_by_what_is_there() -> None:
    """Two operators make an authority each, and only the stored one may sign. The other's plan ends before anything is signed."""
    creates = (Create(PODS, pod("ca"), fresh=True), Create(PODS, pod("c"), wave=1))
    taken = AlreadyExists(409, "AlreadyExists", "there")
    run = Run(Plan(creates=creates, status=STATUS), {("create", "ca"): taken, ("get", "ca"): pod("ca")})
    assert run.did == ["create Pod ca", "get Pod ca"]
    assert [failure.transient for failure in run.result.failures] == [True]
    assert run.unsent == ["ca", "c"]
