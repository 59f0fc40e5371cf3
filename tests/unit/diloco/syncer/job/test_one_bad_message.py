"""One message that cannot be handled ends its sender, and nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.chunks import chunk_of
from builders.exchange import WAIT_TIMEOUT, LocalSyncer, Place, job_file, training, until
from builders.scripted_learner import ScriptedLearner
from builders.shardings import Sharding, rows
from diloco.algorithm.codec import Coding
from diloco.protocol.diloco_pb2 import Chunk, FromLearner, Progress, Refused, UnitReport
from diloco.protocol.framing import split

LONG = 100_000
"""Outer steps of a job that is to last as long as its test."""


def a_place(path: Path, **changes: object) -> Place:
    return Place(path, job_file(training(LONG, **changes)))


def seeded(raw: ScriptedLearner) -> ScriptedLearner:
    raw.hello().hear("welcome")
    return raw.seed()


def trains(syncer: LocalSyncer, raw: ScriptedLearner, first: int = 1) -> None:
    """The learner, alone, takes the clock further."""
    before = syncer.report().t
    raw.step(first)
    until(lambda: syncer.report().t > before, "an outer step")


def asked(raw: ScriptedLearner) -> Chunk:
    """The header of the right answer to the next pull."""
    raw.step(1)
    pull = raw.hear("pull").pull
    return Chunk(kind=Chunk.PUSH, fragment=pull.fragment, t=pull.t, coding=Chunk.FLOAT32, steps=1, tokens=8, tokens_done=8, steps_done=1)


def answer(raw: ScriptedLearner, header: Chunk) -> ScriptedLearner:
    return raw.transfer(header, bytes(4 * raw.fragments[header.fragment].size))


def is_refused(raw: ScriptedLearner, message: str) -> None:
    refused = raw.hear("refused").refused
    assert (refused.code, message in refused.message) == (Refused.PROTOCOL, True), refused.message


@pytest.mark.parametrize(
    ("field", "value"), [("coding", 99), ("base", 7), ("steps", 9), ("tokens", 9), ("tokens_done", 1), ("steps_done", 9)]
)
def test_a_last_chunk_that_differs_from_the_first_ends_its_sender_only(tmp_path: Path, field: str, value: int) -> None:
    with LocalSyncer(a_place(tmp_path)) as syncer, ScriptedLearner(syncer, unit="bad") as bad:
        header = asked(seeded(bad))
        payload = bytes(4 * bad.fragments[header.fragment].size)
        first, last = (chunk_of(piece) for piece in split(header, payload, len(payload) // 2))
        setattr(last, field, value)
        bad.say(FromLearner(chunk=first)).say(FromLearner(chunk=last))
        is_refused(bad, f"has another {field} at offset {len(payload) // 2} than in its first chunk")
        with ScriptedLearner(syncer, unit="other") as other:
            other.hello().hear("welcome")
            trains(syncer, other)


@pytest.mark.parametrize(("steps", "tokens"), [(100, 2), (2, 100)])
def test_a_report_with_too_many_counters_is_refused_and_not_kept(tmp_path: Path, steps: int, tokens: int) -> None:
    """A message has room for tens of millions, and a report is kept until the next one of its session."""
    with LocalSyncer(a_place(tmp_path)) as syncer, ScriptedLearner(syncer, unit="bad") as bad:
        seeded(bad).say(FromLearner(progress=Progress(local_step=1, steps=[0] * steps, tokens=[0] * tokens, step_seconds=1.0)))
        is_refused(bad, f"{steps} step and {tokens} token counters, the job has 2 fragments")
        assert not syncer.syncer.engine.exchanges._reported_adoptions._reported


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("field", ["versions", "checksums"])
def test_a_hello_with_more_versions_than_the_job_has_fragments_is_refused(tmp_path: Path, field: str, rank: int) -> None:
    with LocalSyncer(a_place(tmp_path)) as syncer, ScriptedLearner(syncer, unit="bad", sharding=rows(2)) as bad:
        bad.welcomed()
        is_refused(
            bad.reopen(rank).hello(**{field: [0] * 3, "rank": rank, "process": b"p"}), f"Hello has 3 {field}, the job has 2 fragments"
        )


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("framework", "a framework of 1000000 characters"),
        ("locality", "a locality of 1000000 characters"),
        ("cluster", "a cluster of 1000000 characters"),
        ("inner_state", "a kind of inner state of 1000000 characters"),
        ("session", "a session of 1000000 characters"),
        ("process", "a process of 1000000 characters"),
        ("peer_address", "an address of 1000000 characters"),
        ("rank_addresses", "1000000 addresses of ranks"),
    ],
)
def test_a_hello_with_a_megabyte_of_text_is_refused(tmp_path: Path, field: str, says: str) -> None:
    """It would be kept, and compared with those of all other units."""
    value = b"/" * 1_000_000 if field in ("session", "process") else "/" * 1_000_000
    with LocalSyncer(a_place(tmp_path)) as syncer, ScriptedLearner(syncer, unit="bad") as bad:
        is_refused(bad.hello(**{field: value}), f"Hello has {says}")


@pytest.mark.slow
def test_two_answers_of_ranks_with_contradicting_totals_end_their_unit_only(tmp_path: Path) -> None:
    """Both are whole before the first one is in the merge, so each alone was possible when it came."""
    place = a_place(tmp_path, overlap_steps=1, quorum=1)
    with (
        LocalSyncer(place) as syncer,
        ScriptedLearner(syncer, unit="bad", sharding=rows(2)) as bad,
        ScriptedLearner(syncer, unit="other") as other,
    ):
        bad.coding = Coding.FLOAT32
        bad.join().seed()
        until(lambda: syncer.report().seeded, "the seed")
        bad.step(1)
        bad.step(2)
        pulls = [bad.pulled(), bad.pulled()]
        assert {pull.fragment for pull in pulls} == {0, 1}
        # Of two totals with 16 and 8 tokens the later one cannot have fewer steps.
        totals = [{"tokens_done": 16, "steps_done": 1}, {"tokens_done": 8, "steps_done": 2}]
        for rank, i in ((0, 0), (1, 1), (0, 1), (1, 0)):  # each rank has the last portion of one answer
            bad.push(pulls[i], bad.trained(pulls[i]), ranks=[rank], **totals[i])
        is_refused(bad, "are not totals of one session")
        other.hello().hear("welcome")
        trains(syncer, other)


def break_for_bad(monkeypatch: pytest.MonkeyPatch, owner: object, method: str) -> None:
    """A defect that only the events of the unit `bad` meet, which the method is told of first."""
    function: Callable[..., Any] = getattr(owner, method)

    def with_a_defect(of: object, *arguments: Any, **named: Any) -> Any:
        if "bad" in str(of):
            raise OverflowError("a defect")
        return function(of, *arguments, **named)

    monkeypatch.setattr(owner, method, with_a_defect)


type BesideBad = tuple[LocalSyncer, ScriptedLearner, ScriptedLearner]


@contextlib.contextmanager
def beside_bad(path: Path, *, sharding: Sharding | None = None, joins: bool = True, quorum: int = 1) -> Iterator[BesideBad]:
    """A job whose first learner has given the seed, and the unit `bad`, all ranks of which have joined."""
    with (
        LocalSyncer(a_place(path, quorum=quorum)) as syncer,
        ScriptedLearner(syncer, unit="first") as first,
        ScriptedLearner(syncer, unit="bad", sharding=sharding) as bad,
    ):
        seeded(first)
        until(lambda: syncer.report().seeded, "the seed")
        if joins:
            bad.coding = Coding.FLOAT32
            bad.join().adopt(len(bad.fragments))
        yield syncer, first, bad


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "say", "what"),
    [
        ("begin", lambda raw: raw.hello(), "Hello"),
        ("too_many", lambda raw: raw.want(1), "Work"),
        ("contradiction", lambda raw: answer(raw, asked(raw)), "PushOffered"),
        ("contradiction_of", lambda raw: answer(raw, asked(raw)), "PushOffered"),
    ],
)
def test_an_exception_that_an_event_raises_refuses_its_stream_and_no_other(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
    say: Callable[[ScriptedLearner], ScriptedLearner],
    what: str,
) -> None:
    with beside_bad(tmp_path, joins=what != "Hello") as (syncer, first, bad):
        break_for_bad(monkeypatch, syncer.syncer.engine.work, method)
        with caplog.at_level(logging.ERROR):
            is_refused(say(bad), f"the syncer could not handle {what}: OverflowError: a defect")
        assert "Traceback" in caplog.text
        monkeypatch.undo()
        trains(syncer, first)
        with ScriptedLearner(syncer, unit="bad", attempt=2) as again:
            again.hello(session=b"again").hear("welcome")
            again.want(1).hear("work")


@pytest.mark.slow
@pytest.mark.parametrize("where", ["work.contradiction_of", "core.decode_portions"])
def test_an_exception_in_an_answer_of_ranks_refuses_their_unit_and_its_exchange_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    with beside_bad(tmp_path, sharding=rows(2), quorum=2) as (syncer, first, bad):
        exchanges = syncer.syncer.engine.exchanges
        owner, method = (syncer.syncer.engine.work, "contradiction_of") if where.startswith("work") else (exchanges.core, "decode_portions")
        break_for_bad(monkeypatch, owner, method)
        bad.step(1)
        header = asked(first)
        with caplog.at_level(logging.ERROR):
            bad.push(bad.pulled())
            is_refused(bad, "the syncer could not handle a push: OverflowError: a defect")
        assert "Traceback" in caplog.text
        answer(first, header)
        until(lambda: syncer.unit("first").contributions == 1, "the merge of the same exchange, without the unit")
        assert syncer.unit("bad").contributions == 0
        monkeypatch.undo()
        with ScriptedLearner(syncer, unit="bad", attempt=2, sharding=rows(2)) as again:
            again.join().want(1).hear("work")


@pytest.mark.slow
def test_an_exception_in_an_answer_of_ranks_that_have_left_holds_up_no_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its streams are lost while its answer is decoded: there is none to refuse, and the engine goes on."""
    left = threading.Event()

    async def fails(*_: object) -> None:
        await asyncio.to_thread(left.wait, WAIT_TIMEOUT)
        raise OverflowError("a defect")

    with beside_bad(tmp_path, sharding=rows(2), quorum=2) as (syncer, first, bad):
        monkeypatch.setattr(syncer.syncer.engine.exchanges, "run", fails)
        bad.step(1)
        header = asked(first)
        with caplog.at_level(logging.ERROR):
            pull = bad.pulled()
            bad.push(pull)
            core = syncer.core
            until(lambda: "bad" in core.coordinator._open[pull.t].arriving, "both portions to be there")
            for stream in bad.streams:
                stream.cut()
            until(lambda: syncer.unit("bad").state == UnitReport.DISCONNECTED, "the unit to be lost")
            monkeypatch.undo()
            left.set()
            until(lambda: "an answer of unit bad, which has left, could not be handled" in caplog.text, "the defect to be logged")
        answer(first, header)
        until(lambda: syncer.unit("first").contributions == 1, "the merge without the unit")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sessions.stream_lost", "exchanges.leave"])
def test_an_exception_at_the_loss_of_a_stream_ends_that_stream_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    with beside_bad(tmp_path) as (syncer, first, bad):
        owner, name = method.split(".")
        break_for_bad(monkeypatch, getattr(syncer.syncer.engine._job, owner), name)
        with caplog.at_level(logging.ERROR):
            bad.cut()
            until(lambda: "the syncer could not handle StreamLost: OverflowError: a defect" in caplog.text, "the defect to be logged")
        monkeypatch.undo()
        trains(syncer, first)
        with ScriptedLearner(syncer, unit="bad") as again:
            again.hello(session=b"again").hear("welcome")
            again.want(1).hear("work")


def test_an_exception_of_the_engine_itself_leaves_a_snapshot_to_go_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = a_place(tmp_path)
    failing = _Failing(place)
    with failing as syncer, ScriptedLearner(syncer) as raw:
        header = asked(seeded(raw))
        answer(raw, header).receive(lambda transfer: transfer.header.t == header.t)
        held = syncer.report()

        def fails(now: float) -> None:
            raise OverflowError("the engine's own")

        monkeypatch.setattr(syncer.syncer.engine.exchanges, "advance", fails)
        raw.say(FromLearner())  # nothing
        raw.want(1)
        failing.wait()
    assert str(failing.error) == "the engine's own"
    with LocalSyncer(place) as successor:
        assert (successor.report().t, successor.report().seeded) == (held.t, True)
        assert (successor.unit("u-0") or UnitReport()).contributions == 1


class _Failing(LocalSyncer):
    """A syncer whose process ends with an exception."""

    error: Exception | None = None

    async def _serve(self) -> None:
        try:
            await super()._serve()
        except OverflowError as error:
            self.error = error
