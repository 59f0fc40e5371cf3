"""Reports from the jobs' syncers: one `Watch` stream for each job whose syncer runs.

The operator says where each job's syncer is (`Telemetry.follow`), and is notified when a report contains something that it should handle.
Reconcile decides what a report means, also a missing or an old one.

See docs/decisions/0041-what-a-syncer-says.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import grpc
import grpc.aio
from diloco.protocol import diloco_pb2

from diloco_operator.api.names import JobKey
from diloco_operator.kube.fields import clip
from diloco_operator.report import FaultKind, PartState, Report, ReportFault
from diloco_operator.telemetry.endpoint import Endpoint, open_channel
from diloco_operator.telemetry.report_reader import SMALL_REPORT, ReportReader
from diloco_operator.telemetry.wire_report import UnreadableReport, part_state_on_wire
from diloco_operator.timeouts import TelemetryTimeouts

log = logging.getLogger(__name__)

type ChannelFactory = Callable[[Endpoint, float], grpc.aio.Channel]
"""Opens a channel to an endpoint, given the time in seconds since the epoch."""


class Telemetry(Protocol):
    """The operator's source of reports."""

    def on_change(self, notify: Callable[[JobKey], None]) -> None:
        """Call `notify` with a job's key when its report changed."""
        ...

    def follow(self, key: JobKey, endpoint: Endpoint | None) -> None:
        """Follow the job's syncer at `endpoint` from now on; None if it does not run. Every reconcile calls this."""
        ...

    def tell(self, key: JobKey, state: PartState) -> None:
        """Tell the syncer at home, now and whenever it is connected, in which state this part of its job is."""
        ...

    def forget(self, key: JobKey) -> None: ...

    def latest(self, key: JobKey) -> Report | None:
        """Return the last report of the job's syncer, however old. None if there was none since this operator started."""
        ...

    def fault(self, key: JobKey) -> ReportFault | None:
        """Return what is wrong with the reports of the job's syncer; None once it sends one that can be read."""
        ...

    async def close(self) -> None: ...


class SyncerWatcher:
    """`Telemetry` over gRPC. Lives in one event loop; `now` is the operator's wall clock in seconds, `rng` draws jitter from [0, 1)."""

    def __init__(
        self,
        *,
        now: Callable[[], float],
        rng: Callable[[], float],
        timeouts: TelemetryTimeouts | None = None,
        channel: ChannelFactory = open_channel,
        on_report: Callable[[JobKey, Report], None] | None = None,
    ) -> None:
        """`on_report` gets every report, with all entries. If it is None, the syncers send no entries."""
        self._now = now
        self._rng = rng
        self._timeouts = timeouts or TelemetryTimeouts()
        self._channel = channel
        self._on_report = on_report
        self._notify: list[Callable[[JobKey], None]] = []
        self._reader = ReportReader()
        self._streams: dict[JobKey, _Stream] = {}
        self._reports: dict[JobKey, Report] = {}
        self._faults: dict[JobKey, ReportFault] = {}
        self._part_states: dict[JobKey, PartState] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def on_change(self, notify: Callable[[JobKey], None]) -> None:
        self._notify.append(notify)

    def follow(self, key: JobKey, endpoint: Endpoint | None) -> None:
        stream = self._streams.get(key)
        if stream is not None and stream.endpoint == endpoint and stream.end is None:
            return
        loop = asyncio.get_running_loop()
        if stream is None or endpoint is None or stream.endpoint.pod_uid != endpoint.pod_uid:
            self._faults.pop(key, None)  # the fault was another syncer's
        if endpoint is None:
            if stream is not None and stream.end is None:  # its last report may be on its way, and may tell of a newer snapshot
                stream.end = loop.call_later(self._timeouts.late_reports, self._end, key)
            return
        self._end(key)
        task = loop.create_task(self._run(key, endpoint), name=f"syncer of {key[0]}/{key[1]}")
        self._streams[key] = _Stream(endpoint, task)

    def tell(self, key: JobKey, state: PartState) -> None:
        self._part_states[key] = state

    def forget(self, key: JobKey) -> None:
        self._end(key)
        self._part_states.pop(key, None)
        self._reports.pop(key, None)
        self._faults.pop(key, None)

    def fault(self, key: JobKey) -> ReportFault | None:
        return self._faults.get(key)

    def latest(self, key: JobKey) -> Report | None:
        return self._reports.get(key)

    async def close(self) -> None:
        for key in list(self._streams):
            self._end(key)
        if self._ending:
            await asyncio.wait(self._ending)
        self._reader.close()

    def _end(self, key: JobKey) -> None:
        stream = self._streams.pop(key, None)
        if stream is not None:
            if stream.end is not None:
                stream.end.cancel()
            stream.task.cancel()
            self._ending.add(stream.task)
            stream.task.add_done_callback(self._ending.discard)

    async def _run(self, key: JobKey, endpoint: Endpoint) -> None:
        """Follow one syncer until cancelled, over any number of connections."""
        failures, abuses, good = 0, 0, 0
        while True:
            fault: ReportFault | None = None
            connected_at: float | None = None
            try:
                async with self._channel(endpoint, self._now()) as channel, self._telling(key, endpoint, channel):
                    async for report in self._reports_of(channel, endpoint):
                        failures, good = 0, good + 1
                        if good >= _GOOD_REPORTS:
                            abuses = 0
                        connected_at = connected_at if connected_at is not None else report.received_at
                        self._take(key, replace(report, connected_at=connected_at))
                why = "the stream ended"
            except TimeoutError:
                why = f"no report for {self._timeouts.read:.0f} s"
            except grpc.aio.AioRpcError as error:
                why = f"{error.code().name}: {clip(error.details() or '')}"
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:  # gRPC itself refuses a message that is too large
                    size = f"{endpoint.most_bytes >> 10} KiB, the most for {endpoint.most_units} units"
                    fault = ReportFault(FaultKind.TOO_LARGE, f"a report of the syncer is larger than {size}")
            except UnreadableReport as error:
                why, fault = str(error), error.fault
            except Exception as error:  # a defect that shows in one job: the stream must not end for good without a word
                log.exception("the reports of %s/%s cannot be read: this is a defect, please report it", *key)
                why = type(error).__name__
            failures += 1
            if fault is not None:
                abuses, good = abuses + 1, 0
                self._refuse(key, fault)
                delay = self._timeouts.unreadable.delay(abuses, self._rng())
            else:
                delay = self._timeouts.backoff.delay(failures, self._rng())
            # A starting syncer refuses connections for a while, so only repeated failures are worth a warning.
            log.log(
                logging.WARNING if failures == 5 else logging.DEBUG,
                "the syncer of %s/%s at %s: %s; next attempt in %.1f s",
                *key,
                endpoint.address,
                why,
                delay,
            )
            await asyncio.sleep(delay)

    @asynccontextmanager
    async def _telling(self, key: JobKey, endpoint: Endpoint, channel: grpc.aio.Channel) -> AsyncIterator[None]:
        """Tell the syncer meanwhile in which state the part is. Another job has its syncer in its own cluster."""
        if endpoint.pod_uid:
            yield
            return
        telling = asyncio.create_task(self._tell_again(key, channel), name=f"part {key[0]}/{key[1]}")
        try:
            yield
        finally:
            telling.cancel()
            [ended] = await asyncio.gather(telling, return_exceptions=True)
            if isinstance(ended, Exception):
                log.error("the state of part %s/%s cannot be told: this is a defect, please report it", *key, exc_info=ended)

    async def _tell_again(self, key: JobKey, channel: grpc.aio.Channel) -> None:
        """Tell the state at each change, and again after a while: home takes a part that says nothing for silent."""
        call: Any = channel.unary_unary(
            _TELL, request_serializer=diloco_pb2.PartState.SerializeToString, response_deserializer=diloco_pb2.Told.FromString
        )
        loop = asyncio.get_running_loop()
        told, told_at = None, 0.0
        while True:
            state = self._part_states.get(key)
            if state is not None and (state != told or loop.time() - told_at >= self._timeouts.tell_again):
                try:
                    await call(part_state_on_wire(state), timeout=self._timeouts.read)
                    told, told_at = state, loop.time()
                except grpc.aio.AioRpcError as error:
                    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                        return  # an older syncer
                    # If the link is cut, its reports end too, and say so.
                    log.debug("the syncer of part %s/%s was not told its state: %s", *key, error.code().name)
            await asyncio.sleep(self._timeouts.tell)

    async def _reports_of(self, channel: grpc.aio.Channel, endpoint: Endpoint) -> AsyncIterator[Report]:
        request = diloco_pb2.WatchRequest(interval_seconds=self._timeouts.interval, entries=self._on_report is not None)
        # Not by the generated stub: it decodes on the event loop.
        call: Any = channel.unary_stream(_WATCH, request_serializer=diloco_pb2.WatchRequest.SerializeToString)(request)
        loop = asyncio.get_running_loop()
        while True:
            async with asyncio.timeout(self._timeouts.read):
                raw = await call.read()
            if not isinstance(raw, bytes):  # the end of the stream
                return
            # A report that is not read yet stays with the syncer: the stream's flow control stops it.
            next_at = loop.time() + (self._timeouts.spacing if len(raw) <= SMALL_REPORT else self._timeouts.large_spacing)
            report = await self._reader.read(raw, endpoint.most_units, self._now(), endpoint.pod_uid)
            # The generator waits for seconds here, and would hold up to 2 MiB for each job.
            del raw
            yield report
            await asyncio.sleep(next_at - loop.time())

    def _take(self, key: JobKey, report: Report) -> None:
        if self._on_report is not None:
            self._on_report(key, report)
        before = self._reports.get(key)
        # Entries are handed on once; kept, they would be up to 4,096 for each job.
        self._reports[key] = replace(report, entries=())
        stream = self._streams[key]
        fault_ended = self._faults.pop(key, None) is not None
        urgent = fault_ended or before is None or before.pod_uid != report.pod_uid or matters(before) != matters(report)
        loop_now = asyncio.get_running_loop().time()
        # Each report of a syncer that is gone may be its last.
        if urgent or stream.end is not None or loop_now - stream.notified >= self._timeouts.notify_interval:
            self._tell(key)

    def _refuse(self, key: JobKey, fault: ReportFault) -> None:
        if self._faults.get(key) != fault:
            self._faults[key] = fault
            self._tell(key)

    def _tell(self, key: JobKey) -> None:
        self._streams[key].notified = asyncio.get_running_loop().time()
        for notify in self._notify:
            notify(key)


_SYNCER = diloco_pb2.DESCRIPTOR.services_by_name["Syncer"].full_name
_WATCH, _TELL = f"/{_SYNCER}/Watch", f"/{_SYNCER}/Tell"
_GOOD_REPORTS = 10
"""Readable reports in a row after which an unreadable one counts as the first again."""


@dataclass(slots=True)
class _Stream:
    endpoint: Endpoint
    task: asyncio.Task[None]
    end: asyncio.TimerHandle | None = None
    """Ends the stream soon, since its syncer does not run any more. None while it runs."""
    notified: float = float("-inf")
    """When the operator was last notified, on the event loop's clock."""


def matters(report: Report) -> object:
    """Return the part of a report that reconcile must see at once. The rest is progress, which can wait a moment."""
    units = tuple(
        (unit.unit, unit.attempt, unit.phase, tuple(sorted(unit.refused.items())), unit.message, unit.pause, unit.holds_parameters)
        for unit in report.units.values()
    )
    return units, report.ending, report.seeded, report.done, report.draining, report.snapshot_error, report.message
