"""Which emitted events are written, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from builders.scripted_api import ScriptedApi
from builders.virtual_time import run_virtual
from diloco_local.memory import MemoryApi
from diloco_operator.api.names import ANNOTATION_SAID, EVENTS, LABEL_UNIT
from diloco_operator.api.reasons import EventReason
from diloco_operator.kube.client import AlreadyExists, ApiError, Forbidden, Obj
from diloco_operator.operator import events as events_module
from diloco_operator.operator.events import EventAggregator, EventRecorder, Subject
from diloco_operator.plan import Event

JOB = Subject("default", "lm", "uid-lm")
START = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)
LOST = Event("Warning", "UnitLost", "v5p-0: the node is gone")


def now() -> datetime:
    return START + timedelta(seconds=asyncio.get_running_loop().time())


class Stage:
    def __init__(self, api: MemoryApi) -> None:
        self.api = api
        self.recorder = EventRecorder(api, now)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[EventRecorder]:
        """A running recorder; a new one each time, as after a restart."""
        self.recorder = EventRecorder(self.api, now)
        task = asyncio.create_task(self.recorder.run())
        try:
            yield self.recorder
            await self.recorder.drained()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def events(self) -> list[Obj]:
        return sorted((await self.api.list(EVENTS)).items, key=lambda event: event["message"])


def play(scenario: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        def reads_nothing(verb: str, *_: Any) -> None:
            if verb == "get":
                raise Forbidden(403, "Forbidden", "the operator may create and patch events, and nothing else")

        await scenario(Stage(MemoryApi(before=reads_nothing)))

    run_virtual(run())


def test_the_same_event_emitted_again_raises_the_count_and_the_last_time() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.writing() as recorder:
            for _ in range(3):
                recorder.emit(JOB, LOST)
                await asyncio.sleep(60)
        [event] = await stage.events()
        assert event["count"] == 3
        assert event["firstTimestamp"] == "2026-11-20T21:00:00Z"
        assert event["lastTimestamp"] == "2026-11-20T21:02:00Z"

    play(scenario)


def test_a_restarted_operator_continues_the_count_without_reading() -> None:
    async def scenario(stage: Stage) -> None:
        for _ in range(3):
            async with stage.writing() as recorder:
                recorder.emit(JOB, LOST)
        [event] = await stage.events()
        assert event["count"] == 3

    play(scenario)


def test_what_is_emitted_many_times_a_second_is_written_once_in_ten_seconds() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.writing() as recorder:
            for _ in range(400):
                recorder.emit(JOB, LOST)
                await asyncio.sleep(0.1)
        [event] = await stage.events()
        assert event["count"] == 400
        assert stage.api.writes <= 6  # 40 s: at 0, 10, 20 and 30 s, and the rest at the end; one to spare

    play(scenario)


def test_many_that_differ_only_in_their_message_become_one() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.writing() as recorder:
            for unit in range(1000):
                recorder.emit(JOB, Event("Warning", "UnitLost", f"v5p-{unit}: the node is gone"))
        combined, *single = await stage.events()
        assert len(single) == 10
        assert combined["message"] == "(combined from similar events) v5p-999: the node is gone"
        assert combined["count"] == 990

    play(scenario)


def test_programs_read_the_unit_and_its_words_from_annotations() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.writing() as recorder:
            recorder.emit(JOB, Event.about("v5p-0", EventReason.UNIT_LOST, "node tpu-1: it is gone"))
            recorder.emit(JOB, Event.of(EventReason.OWN_DATA, "of the whole job"))
        about_the_job, about_a_unit = sorted(await stage.events(), key=lambda event: event["reason"])
        assert about_a_unit["message"] == "v5p-0: node tpu-1: it is gone"
        assert about_a_unit["metadata"]["annotations"] == {LABEL_UNIT: "v5p-0", ANNOTATION_SAID: "node tpu-1: it is gone"}
        assert "annotations" not in about_the_job["metadata"]

    play(scenario)


def test_a_combined_event_names_the_unit_of_its_message() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.writing() as recorder:
            for unit in range(20):
                recorder.emit(JOB, Event.about(f"v5p-{unit}", EventReason.UNIT_LOST, "the node is gone"))
                await asyncio.sleep(60)
        combined = next(event for event in await stage.events() if event["count"] > 1)
        assert combined["message"] == "(combined from similar events) v5p-19: the node is gone"
        assert combined["metadata"]["annotations"][LABEL_UNIT] == "v5p-19"

    play(scenario)


def test_other_reasons_and_other_jobs_are_not_combined_with_them() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.writing() as recorder:
            for unit in range(20):
                recorder.emit(JOB, Event("Warning", "UnitLost", f"v5p-{unit}"))
            recorder.emit(JOB, Event("Normal", "StepsReached", "done"))
            recorder.emit(Subject("default", "other", "uid-other"), Event("Warning", "UnitLost", "v5p-0"))
        messages = [event["message"] for event in await stage.events()]
        assert len(messages) == 10 + 1 + 1 + 1

    play(scenario)


def test_after_a_quiet_time_they_are_written_one_by_one_again() -> None:
    similar = EventAggregator()
    assert not any(similar.count("kind", f"m{i}", 0.0) for i in range(10))
    assert similar.count("kind", "m10", 599.0)
    assert not similar.count("kind", "m11", 599.0 + 600.0)


def test_a_missing_namespace_costs_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(stage: Stage) -> None:
        gone = Subject("gone", "lm", "uid-gone")
        async with stage.writing() as recorder:
            recorder.emit(gone, LOST)
            await asyncio.sleep(20)
            recorder.emit(gone, LOST)
            recorder.emit(JOB, LOST)
        assert len(await stage.events()) == 1
        assert [record.message.partition(":")[0] for record in caplog.records] == ["event UnitLost about gone/lm was not written"] * 2

    play(scenario)


def test_an_expired_event_is_created_again() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.writing() as recorder:
            recorder.emit(JOB, LOST)
            await asyncio.sleep(20)
            [event] = await stage.events()
            await stage.api.delete(EVENTS, "default", event["metadata"]["name"])
            recorder.emit(JOB, LOST)
        [event] = await stage.events()
        assert event["count"] == 1

    play(scenario)


def test_the_writers_end_well_when_an_earlier_event_was_taken_away_in_between() -> None:
    """The event exists at the create and is gone at the patch."""
    calls: list[str] = []

    def answer(verb: str, _: Any) -> ApiError | None:
        calls.append(verb)
        return AlreadyExists(409, "AlreadyExists", "exists") if verb == "create" else ApiError(404, "NotFound", "gone")

    async def run() -> None:
        client: Any = ScriptedApi(handle=answer)
        recorder = EventRecorder(client, now)
        recorder.emit(JOB, LOST)
        task = asyncio.create_task(recorder.run())
        await recorder.drained()
        assert not task.done()
        task.cancel()

    run_virtual(run())
    assert calls == ["create", "patch"]


def test_more_events_than_can_be_written_are_dropped_and_counted(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "BACKLOG", 10)

    async def overwhelm() -> int:
        client: Any = ScriptedApi()
        events = EventRecorder(client, now)
        for index in range(13):
            events.emit(Subject("default", f"lm-{index}", f"uid-{index}"), LOST)
        writing = asyncio.create_task(events.run())
        await events.drained()
        writing.cancel()
        return len(client.calls)

    assert run_virtual(overwhelm()) == 10
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "10 events wait to be written",
        "3 events were dropped",
    ]


def test_message_of_an_event_is_cut_to_what_the_api_takes() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.writing() as recorder:
            for index in range(12):  # the last ones are combined, with words of their own before the message
                recorder.emit(JOB, Event("Warning", "UnitLost", f"v5p-{index}: {'😀' * 40_000}"))
        events = await stage.events()
        assert len(events) == 11
        assert {len(event["message"]) for event in events} == {events_module.MESSAGE_LIMIT}

    play(scenario)
