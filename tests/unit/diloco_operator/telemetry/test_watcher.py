from __future__ import annotations

import asyncio
import itertools
import logging
import math
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from builders.certificates import JobCertificates
from builders.exchange import job_file
from builders.jobs import a_job, tpu_pool
from builders.virtual_time import run_virtual, until
from builders.wire import serve
from diloco.contract import operator_identity, syncer_host_name
from diloco.protocol import diloco_pb2 as pb
from diloco.protocol.backoff import ExponentialBackoff
from diloco.protocol.tls import peer_identity, server_credentials
from diloco_operator.certificates.authority import Authority
from diloco_operator.certificates.issuing import Issuer
from diloco_operator.reconcile.observe.job import parse_job
from diloco_operator.report import Entry, FaultKind, LocalStep, Merge, PartState, Report, UnitPhase
from diloco_operator.telemetry.endpoint import MOST_UNITS, Endpoint, most_units_of
from diloco_operator.telemetry.report_reader import SMALL_REPORT, ReportReader
from diloco_operator.telemetry.watcher import SyncerWatcher, matters
from diloco_operator.telemetry.wire_report import report_of
from diloco_operator.timeouts import TelemetryTimeouts

KEY = ("ns", "lm")
JOB = job_file()
NOW = time.time()
"""The operator's clock. It stands still, while TLS is real."""
LIFETIME = 86400.0
"""Seconds that certificates last: they are made when this file is imported, and a run of all tests on a slow machine takes hours."""
AUTHORITY = Issuer(lambda: NOW, LIFETIME).authority(JOB.uid)
FAST = TelemetryTimeouts(
    interval=0.05,
    notify_interval=3600,
    spacing=0.0,
    large_spacing=0.0,
    read=60.0,
    backoff=ExponentialBackoff(initial=0.02, ceiling=0.1),
    unreadable=ExponentialBackoff(initial=0.02, ceiling=0.1),
)
IMPATIENT = replace(FAST, read=0.5)
"""A syncer that is silent for so long is watched anew, and what it sends on the stream from before is lost."""


class FakeSyncer:
    """Sends what is put into `reports`; records its clients."""

    def __init__(self, *, older: bool = False) -> None:
        """`older`: it knows no `Tell`."""
        self.older = older
        self.refused = 0
        self.reports: asyncio.Queue[pb.Report | None] = asyncio.Queue()
        self.callers: list[str] = []
        self.intervals: list[float] = []
        self.entries_wanted: list[bool] = []
        self.watching = 0
        self.told: list[pb.PartState] = []

    async def watch(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.Report]:
        self.callers.append(peer_identity(context.auth_context()))
        self.intervals.append(request.interval_seconds)
        self.entries_wanted.append(request.entries)
        self.watching += 1
        try:
            while (report := await self.reports.get()) is not None:
                yield report
        finally:
            self.watching -= 1

    async def tell(self, state: pb.PartState, context: Any) -> pb.Told:
        if self.older:
            self.refused += 1
            await context.abort(grpc.StatusCode.UNIMPLEMENTED)
        self.told.append(state)
        return pb.Told()


@asynccontextmanager
async def serving(
    syncer: FakeSyncer, host: str = "127.0.0.1", port: int = 0, authority: Authority = AUTHORITY, roots: str = ""
) -> AsyncIterator[int]:
    with tempfile.TemporaryDirectory() as folder:
        server = grpc.aio.server()
        serve(server, watch=syncer.watch, tell=syncer.tell)
        files = JobCertificates(Path(folder), JOB, authority=authority).syncer(roots=roots)
        port = server.add_secure_port(f"{host}:{port}", server_credentials(files))
        await server.start()
        try:
            yield port
        finally:
            await server.stop(grace=None)


class Watched:
    def __init__(self, timeouts: TelemetryTimeouts = FAST) -> None:
        self.notified: list[tuple[str, str]] = []
        self.watcher = SyncerWatcher(now=lambda: NOW, rng=lambda: 0.0, timeouts=timeouts)
        self.watcher.on_change(self.notified.append)

    @property
    def latest(self) -> Report | None:
        return self.watcher.latest(KEY)


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    it = Watched()
    yield it
    await it.watcher.close()


def endpoint(port: int, pod_uid: str = "pod-1", host: str = "127.0.0.1", **changes: Any) -> Endpoint:
    usual: dict[str, Any] = {"job_uid": JOB.uid, "host_name": syncer_host_name(JOB.name, JOB.namespace), "identity": AUTHORITY}
    usual["roots"] = AUTHORITY.root.pem
    return Endpoint(pod_uid=pod_uid, host=host, port=port, **(usual | changes))


def report(t: int, *units: tuple[str, int, Any], **fields: Any) -> pb.Report:
    return pb.Report(t=t, steps=100, units=[pb.UnitReport(unit=u, attempt=a, state=s) for u, a, s in units], **fields)


async def test_a_report_arrives_for_the_operators_certificate_and_with_its_clock(watched: Watched) -> None:
    syncer = FakeSyncer()
    async with serving(syncer) as port:
        watched.watcher.follow(KEY, endpoint(port))
        syncer.reports.put_nowait(report(7, ("v5p-0", 2, pb.UnitReport.CONTRIBUTING), tokens=512, loss=2.5))
        await until(lambda: watched.latest)
        assert watched.latest is not None
        assert (watched.latest.t, watched.latest.tokens, watched.latest.loss, watched.latest.received_at) == (7, 512, 2.5, NOW)
        assert watched.latest.units["v5p-0"].phase is UnitPhase.CONTRIBUTING
        assert watched.latest.units["v5p-0"].attempt == 2
        assert syncer.callers == [operator_identity(JOB.uid)]
        assert syncer.intervals == [0.05]
        assert watched.notified == [KEY]


TELLS = replace(FAST, tell=0.02, tell_again=0.1, spacing=0.01)


@pytest.fixture
async def of_a_part() -> AsyncIterator[Watched]:
    it = Watched(TELLS)
    it.watcher.tell(KEY, PartState("Queued", "NoFreeSlice: both slices are in use"))
    yield it
    await it.watcher.close()


async def test_a_part_tells_its_state_on_each_connection_at_each_change_and_again_after_a_while(of_a_part: Watched) -> None:
    syncer = FakeSyncer()
    queued = pb.PartState(state="Queued", message="NoFreeSlice: both slices are in use")
    trains = pb.PartState(state="Training", productive_share=0.0, accelerator_hours={"tpu-v5p": 2.5})
    async with serving(syncer) as port:
        of_a_part.watcher.follow(KEY, endpoint(port, pod_uid=""))
        await until(lambda: len(syncer.told) > 2)
        assert syncer.told == [queued] * len(syncer.told)
        of_a_part.watcher.tell(KEY, PartState("Training", "", 0.0, {"tpu-v5p": 2.5}))
        await until(lambda: trains in syncer.told)
        syncer.told.clear()
        syncer.reports.put_nowait(None)  # the stream ends, and the operator connects again
        await until(lambda: len(syncer.callers) == 2 and syncer.told)
        assert syncer.told[0] == trains


async def several_reports(watched: Watched, syncer: FakeSyncer) -> None:
    """Send twenty and wait until they are read, one each 10 ms: twice the time after which a part tells its state again."""
    for t in range(20):
        syncer.reports.put_nowait(report(t))
    await until(lambda: watched.latest is not None and watched.latest.t == 19)


async def test_only_a_part_tells_a_state(of_a_part: Watched) -> None:
    syncer = FakeSyncer()
    async with serving(syncer) as port:
        of_a_part.watcher.follow(KEY, endpoint(port, pod_uid="pod-1"))
        await several_reports(of_a_part, syncer)
        assert syncer.told == []


async def test_a_part_is_told_of_the_job_by_an_older_syncer_that_takes_no_states(of_a_part: Watched) -> None:
    syncer = FakeSyncer(older=True)
    async with serving(syncer) as port:
        of_a_part.watcher.follow(KEY, endpoint(port, pod_uid=""))
        await several_reports(of_a_part, syncer)
        assert len(syncer.callers) == 1
        assert syncer.refused == 1


async def test_who_keeps_a_record_gets_every_report_with_its_entries_and_others_ask_for_none(watched: Watched) -> None:
    kept: list[Report] = []
    keeper = SyncerWatcher(now=lambda: NOW, rng=lambda: 0.0, timeouts=FAST, on_report=lambda _, each: kept.append(each))
    syncer = FakeSyncer()
    step = pb.LocalStep(unit="v5p-0", attempt=1, local_step=3, step_seconds=math.nan, loss=2.5, samples_done=24, tokens_done=1536)
    merge = pb.Merge(t=7, fragment=2, units=["v5p-0"])
    async with serving(syncer) as port:
        keeper.follow(KEY, endpoint(port))
        entries = [pb.Entry(number=4, at=1.5, step=step), pb.Entry(number=5, at=1.75, merge=merge), pb.Entry(number=6, at=2.0)]
        syncer.reports.put_nowait(report(7, entries=entries, incarnation=b"\x01\x02", clock=2.5, samples=16))
        await until(lambda: kept)
        syncer.reports.put_nowait(None)
        watched.watcher.follow(KEY, endpoint(port))
        await until(lambda: len(syncer.entries_wanted) == 3 or syncer.entries_wanted == [True, False])
        await keeper.close()
    (first,) = kept
    assert (first.incarnation, first.clock, first.samples) == ("0102", 2.5, 16)
    assert first.entries == (
        Entry(4, 1.5, LocalStep("v5p-0", 1, 3, seconds=None, loss=2.5, samples=24, tokens=1536)),
        Entry(5, 1.75, Merge(7, 2, ("v5p-0",), None)),
    )
    assert False in syncer.entries_wanted
    assert keeper.latest(KEY) == replace(first, entries=())


async def test_the_first_report_of_another_pod_notifies_even_if_it_says_the_same(watched: Watched) -> None:
    old, new = FakeSyncer(), FakeSyncer()
    async with serving(old) as old_port, serving(new, host="127.0.0.2") as new_port:
        old.reports.put_nowait(report(1))
        watched.watcher.follow(KEY, endpoint(old_port))
        await until(lambda: watched.latest)
        new.reports.put_nowait(report(1))
        watched.watcher.follow(KEY, endpoint(new_port, pod_uid="pod-2", host="127.0.0.2"))
        await until(lambda: watched.notified == [KEY, KEY])


async def test_progress_alone_does_not_notify_but_a_unit_that_drops_out_does(watched: Watched) -> None:
    syncer = FakeSyncer()
    async with serving(syncer) as port:
        watched.watcher.follow(KEY, endpoint(port))
        for t in (1, 2, 3):
            syncer.reports.put_nowait(report(t, ("v5p-0", 1, pb.UnitReport.CONTRIBUTING)))
        await until(lambda: watched.latest and watched.latest.t == 3)
        assert watched.notified == [KEY]
        syncer.reports.put_nowait(report(4, ("v5p-0", 1, pb.UnitReport.DISCONNECTED)))
        await until(lambda: len(watched.notified) == 2)


async def test_progress_notifies_once_an_interval() -> None:
    it = Watched(replace(FAST, notify_interval=0))
    syncer = FakeSyncer()
    async with serving(syncer) as port:
        it.watcher.follow(KEY, endpoint(port))
        for t in (1, 2, 3):
            syncer.reports.put_nowait(report(t))
        await until(lambda: len(it.notified) == 3)
        await it.watcher.close()


async def test_a_stream_that_ends_is_opened_again(watched: Watched) -> None:
    syncer = FakeSyncer()
    async with serving(syncer) as port:
        watched.watcher.follow(KEY, endpoint(port))
        syncer.reports.put_nowait(report(1))
        syncer.reports.put_nowait(None)
        syncer.reports.put_nowait(report(2))
        await until(lambda: watched.latest and watched.latest.t == 2)
        assert len(syncer.callers) == 2


async def test_a_silent_syncer_is_watched_anew_and_its_last_report_is_kept() -> None:
    it = Watched(IMPATIENT)
    syncer = FakeSyncer()
    async with serving(syncer) as port:
        it.watcher.follow(KEY, endpoint(port))
        await until(lambda: syncer.callers)
        while it.latest is None:  # it may be lost with a stream that was given up
            syncer.reports.put_nowait(report(1))
            await asyncio.sleep(0.01)
        before = len(syncer.callers)
        await until(lambda: len(syncer.callers) > before)
        assert it.latest.t == 1
        await it.watcher.close()


async def test_a_syncer_that_is_not_up_yet_is_found_once_it_is(watched: Watched) -> None:
    first = FakeSyncer()
    async with serving(first) as port:
        pass  # the port is free again
    watched.watcher.follow(KEY, endpoint(port))
    syncer = FakeSyncer()
    syncer.reports.put_nowait(report(3))
    async with serving(syncer, port=port):
        await until(lambda: watched.latest)


async def test_the_stream_follows_the_syncer_to_another_address(watched: Watched) -> None:
    old, new = FakeSyncer(), FakeSyncer()
    async with serving(old) as old_port, serving(new, host="127.0.0.2") as new_port:
        watched.watcher.follow(KEY, endpoint(old_port))
        await until(lambda: old.watching)
        watched.watcher.follow(KEY, endpoint(new_port, pod_uid="pod-2", host="127.0.0.2"))
        new.reports.put_nowait(report(9))
        await until(lambda: watched.latest and watched.latest.t == 9)
        assert watched.latest is not None
        assert watched.latest.pod_uid == "pod-2"
        await until(lambda: not old.watching)


async def test_following_the_same_syncer_again_changes_nothing(watched: Watched) -> None:
    syncer = FakeSyncer()
    async with serving(syncer) as port:
        for _ in range(3):
            watched.watcher.follow(KEY, endpoint(port))
        syncer.reports.put_nowait(report(1))
        await until(lambda: watched.latest)
        assert len(syncer.callers) == 1


async def test_a_job_that_is_gone_is_no_longer_watched_and_its_report_is_forgotten(watched: Watched) -> None:
    syncer = FakeSyncer()
    async with serving(syncer) as port:
        watched.watcher.follow(KEY, endpoint(port))
        syncer.reports.put_nowait(report(1))
        await until(lambda: watched.latest)
        watched.watcher.forget(KEY)
        assert watched.latest is None
        await until(lambda: not syncer.watching)


async def test_a_syncer_that_does_not_run_is_not_watched_but_its_report_stays(watched: Watched) -> None:
    syncer = FakeSyncer()
    async with serving(syncer) as port:
        watched.watcher.follow(KEY, endpoint(port))
        syncer.reports.put_nowait(report(1))
        await until(lambda: watched.latest)
        watched.watcher.follow(KEY, None)
        await until(lambda: not syncer.watching)
        assert watched.latest is not None


async def test_what_a_syncer_sent_before_its_pod_ended_is_read_although_the_end_is_known_first(watched: Watched) -> None:
    syncer = FakeSyncer()
    async with serving(syncer) as port:
        watched.watcher.follow(KEY, endpoint(port))
        await syncer.reports.put(report(5))
        await until(lambda: watched.latest is not None)
        watched.notified.clear()
        watched.watcher.follow(KEY, None)
        watched.watcher.follow(KEY, None)
        await syncer.reports.put(report(5, snapshot_t=5))
        await until(lambda: watched.notified == [KEY])
        assert watched.latest is not None
        assert watched.latest.snapshot_t == 5
        await until(lambda: syncer.watching == 0)


@pytest.mark.parametrize(
    "change",
    [{"seeded": True}, {"done": True}, {"snapshot_error": "full"}, {"message": "m"}, {"draining": True}, {"ending": pb.Ending(t=1)}],
)
def test_what_reconcile_must_see_at_once(change: dict[str, Any]) -> None:
    assert matters(report_of(report(1), 0)) != matters(report_of(report(1, **change), 0))


@pytest.mark.parametrize(
    "change", [{"pause": "evaluation"}, {"message": "NaN"}, {"attempt": 2}, {"holds_parameters": True}, {"refused": {"Outlier": 1}}]
)
def test_what_reconcile_must_see_at_once_of_a_unit(change: dict[str, Any]) -> None:
    joining: dict[str, Any] = {"unit": "u", "attempt": 1, "state": pb.UnitReport.JOINING}
    before, after = (pb.Report(t=1, units=[pb.UnitReport(**fields)]) for fields in (joining, joining | change))
    assert matters(report_of(before, 0)) != matters(report_of(after, 0))


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert endpoint(7077, host="fd00::1").address == "[fd00::1]:7077"


def test_an_interval_longer_than_the_read_timeout_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"telemetry: interval \(20 s\) must be shorter than read \(15 s\)"):
        TelemetryTimeouts(interval=20, read=15)


async def test_a_syncer_of_another_job_is_not_trusted(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)  # on a busy machine the failure that is worth a warning may be another one
    syncer = FakeSyncer()
    stranger = Issuer(lambda: NOW, LIFETIME).authority(JOB.uid)
    async with serving(syncer, authority=stranger) as port:
        syncer.reports.put_nowait(report(7))
        watched.watcher.follow(KEY, endpoint(port))
        await until(lambda: any("CERTIFICATE_VERIFY_FAILED" in record.message for record in caplog.records))
        assert watched.latest is None
        assert syncer.callers == []


async def test_a_syncer_with_a_certificate_of_the_former_authority_is_trusted(watched: Watched) -> None:
    syncer = FakeSyncer()
    former = Issuer(lambda: NOW, LIFETIME).authority(JOB.uid)
    both = AUTHORITY.root.pem + former.root.pem
    async with serving(syncer, authority=former, roots=both) as port:
        syncer.reports.put_nowait(report(7))
        watched.watcher.follow(KEY, endpoint(port, roots=both))
        await until(lambda: watched.latest)


class Flood(FakeSyncer):
    """Sends reports as fast as they are read."""

    def __init__(self, report: pb.Report) -> None:
        super().__init__()
        self._report = report
        self.sent = 0

    async def watch(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.Report]:
        while True:
            self.sent += 1
            self._report.t = self.sent
            yield self._report


def of_many_units(count: int) -> pb.Report:
    units = [pb.UnitReport(unit=f"u-{n}", attempt=1, state=pb.UnitReport.CONTRIBUTING, message="m" * 300) for n in range(count)]
    return pb.Report(t=1, steps=2, units=units)


async def test_a_syncer_that_sends_as_fast_as_it_can_is_read_no_faster_than_agreed() -> None:
    syncer = Flood(of_many_units(128))
    watched = Watched(replace(FAST, spacing=0.1))
    async with serving(syncer) as port:
        began = time.monotonic()
        watched.watcher.follow(KEY, endpoint(port))
        seen: set[int] = set()

        def five_are_read() -> bool:
            seen.update([watched.latest.t] if watched.latest is not None else [])
            return len(seen) >= 5

        await until(five_are_read)
        assert time.monotonic() - began >= 4 * 0.1
        # Some hundred KiB are on their way at most: 30 KiB each.
        assert syncer.sent < 5 + 100
        await watched.watcher.close()


async def test_a_large_report_leaves_the_loop_to_others_while_it_is_read() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(others())
    wire = of_many_units(256)
    reader = ReportReader()
    report = await reader.read(wire.SerializeToString(), 256, NOW, "pod")
    running.cancel()
    reader.close()
    assert turns >= 20
    assert report == report_of(wire, NOW, "pod")


async def test_a_small_report_does_not_wait_for_the_large_ones() -> None:
    reader = ReportReader()
    large = of_many_units(256).SerializeToString()
    assert len(large) > SMALL_REPORT
    first, second = (asyncio.create_task(reader.read(large, 256, NOW)) for _ in range(2))
    await asyncio.sleep(0)
    assert (await reader.read(report(3).SerializeToString(), 256, NOW)).t == 3
    assert not second.done()
    await first
    assert not second.done(), "one after the other"
    await second
    reader.close()


# --- hostile syncers -----------------------------------------------------------------------------------------------------
class Raw(Flood):
    """Sends these bytes as reports, as fast as they are read."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(pb.Report())
        self.raw = raw

    async def answer(self, _: bytes, context: Any) -> AsyncIterator[bytes]:
        while True:
            self.sent += 1
            yield self.raw


@asynccontextmanager
async def serving_raw(syncer: Raw) -> AsyncIterator[int]:
    with tempfile.TemporaryDirectory() as folder:
        server = grpc.aio.server()
        handlers: dict[str, Any] = {"Watch": grpc.unary_stream_rpc_method_handler(syncer.answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("diloco.v1.Syncer", handlers),))
        port = server.add_secure_port("127.0.0.1:0", server_credentials(JobCertificates(Path(folder), JOB, authority=AUTHORITY).syncer()))
        await server.start()
        try:
            yield port
        finally:
            await server.stop(grace=None)


def of_many_refusals(count: int) -> pb.Report:
    refused = {f"reason-{n}": 1 for n in range(count)}
    return pb.Report(t=1, units=[pb.UnitReport(unit="u", attempt=1, state=pb.UnitReport.CONTRIBUTING, refused=refused)])


HOSTILE: dict[str, tuple[Callable[[], pb.Report | bytes], FaultKind, str]] = {
    "a report of 10 MiB": (
        lambda: pb.Report(message="m" * (10 << 20)),
        FaultKind.TOO_LARGE,
        "larger than 512 KiB, the most for 256 units",
    ),
    "a map of 9 MiB": (lambda: of_many_refusals(400_000), FaultKind.TOO_LARGE, "larger than 512 KiB"),
    "more reasons than there are": (lambda: of_many_refusals(33), FaultKind.TOO_MANY_FIELDS, "more than 32 reasons for refusals of a unit"),
    "more units than the job can have": (
        lambda: pb.Report(units=[pb.UnitReport(unit=f"u-{n}", state=pb.UnitReport.DONE) for n in range(257)]),
        FaultKind.TOO_MANY_FIELDS,
        "more than 256 units",
    ),
    "more points than are kept": (
        lambda: pb.Report(losses=[pb.LossPoint(t=t, loss=1) for t in range(4097)]),
        FaultKind.TOO_MANY_FIELDS,
        "more than 4096 points of a loss history",
    ),
    "more links than a job has clusters": (
        lambda: pb.Report(links=[pb.Link(cluster=f"c{n}", received_bytes_per_second=1) for n in range(17)]),
        FaultKind.TOO_MANY_FIELDS,
        "more than 16 links of clusters",
    ),
    "more parts than a job has": (
        lambda: pb.Report(parts=[pb.PartReport(part=f"p{n}") for n in range(17)]),
        FaultKind.TOO_MANY_FIELDS,
        "more than 16 parts",
    ),
    "a million links": (lambda: pb.Report(links=[pb.Link()] * 10**6), FaultKind.TOO_LARGE, "larger than 512 KiB"),
    "what is no report": (lambda: b"\xff" * 100, FaultKind.MALFORMED, "what is no report"),
}
"""What the syncer sends, made by the test that needs it: every process collects this file."""


@pytest.mark.slow
@pytest.mark.parametrize("attack", HOSTILE)
async def test_a_hostile_syncer_is_named_and_left_alone_while_the_job_beside_it_keeps_its_readings(attack: str) -> None:
    make, kind, text = HOSTILE[attack]
    sent = make()
    hostile = Raw(sent if isinstance(sent, bytes) else sent.SerializeToString())
    healthy = FakeSyncer()
    watched = Watched(replace(FAST, unreadable=ExponentialBackoff(initial=3600.0, ceiling=3600.0)))
    evil = ("other", "evil")
    async with serving_raw(hostile) as its_port, serving(healthy) as port:
        watched.watcher.follow(evil, endpoint(its_port))
        watched.watcher.follow(KEY, endpoint(port))
        await until(lambda: watched.watcher.fault(evil))
        fault = watched.watcher.fault(evil)
        assert fault is not None
        assert fault.kind is kind
        assert text in fault.text
        assert watched.watcher.latest(evil) is None
        sent_before = hostile.sent

        def at_step(t: int) -> bool:
            return watched.latest is not None and watched.latest.t == t

        for t in range(1, 6):
            healthy.reports.put_nowait(report(t))
            await until(partial(at_step, t))
        assert watched.watcher.fault(KEY) is None
        assert watched.notified.count(evil) == 1
        # Nothing is read of it while it is left alone: what it sent meanwhile filled buffers of some hundred KiB, once.
        assert hostile.sent - sent_before <= 1 + (1 << 20) // len(hostile.raw)
        await watched.watcher.close()


async def test_a_syncer_that_behaves_again_is_read_again_and_no_longer_named(watched: Watched) -> None:
    syncer = Raw(of_many_refusals(33).SerializeToString())
    async with serving_raw(syncer) as port:
        watched.watcher.follow(KEY, endpoint(port))
        await until(lambda: watched.watcher.fault(KEY))
        syncer.raw = report(7).SerializeToString()
        await until(lambda: watched.latest and watched.latest.t == 7)
        assert watched.watcher.fault(KEY) is None
        assert len(watched.notified) >= 2, "once when it was named, and once when that ended"


async def test_what_was_wrong_with_another_pods_reports_is_forgotten(watched: Watched) -> None:
    async with serving_raw(Raw(b"\xff" * 100)) as port:
        watched.watcher.follow(KEY, endpoint(port))
        await until(lambda: watched.watcher.fault(KEY))
        watched.watcher.follow(KEY, None)
        assert watched.watcher.fault(KEY) is None


# --- on virtual time -----------------------------------------------------------------------------------------------------
class ScriptedChannel:
    """A syncer behind a channel that sends what the script holds, each at once when it is read, and then nothing more. A connection ends
    with the first report that its watcher refuses. Times are the loop's."""

    def __init__(self, script: Iterable[bytes]) -> None:
        self._left = iter(script)
        self.opened: list[float] = []
        self.read_at: list[float] = []
        self.over = asyncio.Event()

    def open(self, _: Endpoint, now: float) -> Any:
        self.opened.append(asyncio.get_running_loop().time())
        return self

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def unary_stream(self, method: str, request_serializer: Callable[[Any], bytes]) -> Callable[[Any], Any]:
        return lambda request: self

    async def read(self) -> bytes:
        self.read_at.append(asyncio.get_running_loop().time())
        found = next(self._left, None)
        if found is None:
            self.over.set()
            await asyncio.Event().wait()
        assert found is not None
        return found


def watched_to_the_end(script: Iterable[bytes]) -> ScriptedChannel:
    """The channel after the usual time-outs, with pauses without jitter. Reports are decoded at once: threads have no virtual time."""

    async def scenario() -> ScriptedChannel:
        def decoded(_: object, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
            done = loop.create_future()
            done.set_result(function(*arguments))
            return done

        loop = asyncio.get_running_loop()
        loop.run_in_executor = decoded  # type: ignore[method-assign, assignment]
        channel = ScriptedChannel(script)
        watcher = SyncerWatcher(now=lambda: NOW, rng=lambda: 0.0, channel=channel.open)
        watcher.follow(KEY, endpoint(7077))
        await channel.over.wait()
        await watcher.close()
        return channel

    return run_virtual(scenario())


def pauses(times: list[float]) -> list[float]:
    return [round(after - before, 6) for before, after in itertools.pairwise(times)]


GOOD, REFUSED = report(7).SerializeToString(), b"\xff" * 100


def test_the_pause_after_a_refused_report_grows_to_a_bound_with_each_in_a_row() -> None:
    opened = watched_to_the_end([REFUSED] * 9).opened
    assert pauses(opened) == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_the_pause_starts_anew_after_ten_good_reports_in_a_row_and_not_after_fewer() -> None:
    script = [REFUSED, REFUSED, *[GOOD] * 9, REFUSED, *[GOOD] * 10, REFUSED, REFUSED]
    # A good report is followed by the next one after 0.25 s, on the same connection.
    assert pauses(watched_to_the_end(script).opened) == [5, 10, 9 * 0.25 + 20, 10 * 0.25 + 5, 10]


def test_after_a_large_report_the_next_is_read_two_seconds_later_and_after_a_small_one_soon() -> None:
    large = of_many_units(256).SerializeToString()
    assert len(large) > SMALL_REPORT >= len(GOOD)
    assert pauses(watched_to_the_end([large, large, large, GOOD, GOOD, large]).read_at) == [2, 2, 2, 0.25, 0.25, 2]


@pytest.mark.parametrize(("pools", "of_each", "units"), [(1, 4, 256), (2, 256, 512), (16, 256, 512)])
def test_a_report_may_have_as_many_units_as_the_jobs_pools(pools: int, of_each: int, units: int) -> None:
    job = a_job().with_learners(1, of_each).with_pools(*(tpu_pool(f"p{n}", learners={"max": of_each}) for n in range(pools)))
    assert most_units_of(parse_job(job.build()).spec) == units
    assert most_units_of(None) == 256


def test_a_report_has_room_for_the_units_of_parts_and_outside_beside_the_most_of_pools_here() -> None:
    parts = [{"name": f"part-{n}", "pools": [{"name": f"far-{n}", "units": 32}]} for n in range(16)]
    job = a_job().with_learners(1, 256, outside=[f"elsewhere-{n}" for n in range(64)]).with_pools(tpu_pool("v5p", learners={"max": 256}))
    most = most_units_of(parse_job(job.with_spec(parts=parts).build()).spec)
    assert most == 256 + 16 * 32 + 64
    assert most <= MOST_UNITS, "what a part, which does not know the job's size, reads of its syncer"
