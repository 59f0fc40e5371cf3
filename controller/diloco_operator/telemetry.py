"""Reports from the jobs' syncers: one `Watch` stream for each job whose syncer runs.

The operator says where each job's syncer is (`Telemetry.follow`), and is notified when a report contains something that it should handle.
Nothing is decided here. Reconcile decides what a missing or an old report means.

See docs/decisions/0041-syncer-observation.md. See docs/decisions/0199-size-of-reports.md.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

import grpc
import grpc.aio
from diloco.contract import (
    ENDED_BY_PROGRAM,
    ENDED_BY_TOKENS,
    MOST_HELD_OUT_POINTS,
    MOST_LOSS_POINTS,
    MOST_PAUSE,
    SYNCER_PORT,
    operator_identity,
)
from diloco.protocol import diloco_pb2
from diloco.wording import one_line
from google.protobuf.message import DecodeError

from diloco_operator.api.spec import MAX_LEARNERS, Spec
from diloco_operator.api.unit_figures import DEFAULTS, FIGURES, KEYS
from diloco_operator.certificates.authority import Authority, Leaf
from diloco_operator.certificates.issuing import Issuer
from diloco_operator.kube.fields import MOST_COUNT, clip
from diloco_operator.report import (
    Ending,
    Entry,
    FaultKind,
    LocalStep,
    LossPoint,
    Merge,
    Recovery,
    RecoveryPhase,
    Report,
    ReportFault,
    UnitPhase,
    UnitReport,
    snapshot_path,
)
from diloco_operator.timeouts import TelemetryTimeouts

log = logging.getLogger(__name__)

type JobKey = tuple[str, str]
"""(namespace, name)."""
type ChannelFactory = Callable[[Endpoint, float], grpc.aio.Channel]
"""Endpoint and the time (seconds since the epoch) to a channel."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a job's syncer listens, and what a connection to it needs."""

    pod_uid: str
    """Another syncer pod may get the same address."""
    host: str
    job_uid: str
    host_name: str
    """The name that the syncer's certificate must have, whatever its address is."""
    authority: Authority
    """It signs the operator's certificate."""
    roots: str = ""
    """Certificates of the authorities that may have signed the syncer's certificate, PEM; "": only `authority`."""
    port: int = SYNCER_PORT
    most_units: int = MAX_LEARNERS
    """Units that a report of this job may have, see `most_units_of`."""

    @property
    def most_bytes(self) -> int:
        """Bytes that a report of this job may have."""
        return _BYTES_OF_JOB + self.most_units * _BYTES_OF_UNIT

    @property
    def address(self) -> str:
        """`host:port` as gRPC wants it; an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


_BYTES_OF_JOB = 256 << 10
"""The most bytes of a report, for all that is not about one unit: most of it are the two loss histories."""
_BYTES_OF_UNIT = 1 << 10
"""The most bytes of a report, for each unit, on average: its figures, name, reasons for refusals and message. Chosen, not measured."""


def most_units_of(spec: Spec | None) -> int:
    """Return units that the job's syncer may report: as many as its pools can have, and not fewer than any job of one pool. A syncer
    reports every unit that it has ever seen, so a job that was scaled down reports more units than its spec has now. Not more than a status
    can list."""
    if spec is None:
        return MAX_LEARNERS
    return min(max(sum(min(pool.learners.max, spec.learners.max) for pool in spec.pools), MAX_LEARNERS), 2 * MAX_LEARNERS)


class Telemetry(Protocol):
    """The operator's source of reports."""

    def on_change(self, notify: Callable[[JobKey], None]) -> None:
        """Call `notify` with a job's key when its report changed."""
        ...

    def follow(self, key: JobKey, endpoint: Endpoint | None) -> None:
        """Follow the job's syncer at `endpoint` from now on; None: it does not run. Idempotent: called at every reconcile."""
        ...

    def forget(self, key: JobKey) -> None:
        """Forget a job that is gone."""
        ...

    def latest(self, key: JobKey) -> Report | None:
        """Return the last report of the job's syncer, however old; None: none since this operator started."""
        ...

    def fault(self, key: JobKey) -> ReportFault | None:
        """Return what is wrong with the reports of the job's syncer; None once it sends one that can be read."""
        ...

    async def close(self) -> None:
        """End every stream."""
        ...


def open_channel(endpoint: Endpoint, now: float) -> grpc.aio.Channel:
    """Return a separate channel to each syncer, with a new certificate. The operator has its own back-off for reconnects, and a proxy from
    the environment must not be used."""
    issuer = Issuer(lambda: now, TelemetryTimeouts().certificate)
    pem = issuer.sign(endpoint.authority, Leaf("", operator_identity(endpoint.job_uid))).encode()
    roots = (endpoint.roots or endpoint.authority.root.pem).encode()
    return grpc.aio.secure_channel(
        endpoint.address,
        grpc.ssl_channel_credentials(roots, private_key=pem, certificate_chain=pem),
        options=[
            ("grpc.ssl_target_name_override", endpoint.host_name),
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", endpoint.most_bytes),
            # What is not read waits at the syncer: without a probe of the bandwidth the window stays as it is.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", 256 << 10),
        ],
    )


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
        """Prepare; `on_report` gets every report, with all entries; None: the syncers send none."""
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
        self._ending: set[asyncio.Task[None]] = set()

    def on_change(self, notify: Callable[[JobKey], None]) -> None:
        self._notify.append(notify)

    def follow(self, key: JobKey, endpoint: Endpoint | None) -> None:
        stream = self._streams.get(key)
        if stream is not None and stream.endpoint == endpoint and stream.end is None:
            return
        loop = asyncio.get_running_loop()
        if stream is None or endpoint is None or stream.endpoint.pod_uid != endpoint.pod_uid:
            self._faults.pop(key, None)  # another syncer, or none
        if endpoint is None:
            if stream is not None and stream.end is None:  # its last words may be on their way: that there is a newer snapshot
                stream.end = loop.call_later(self._timeouts.late_reports, self._end, key)
            return
        self._end(key)
        task = loop.create_task(self._run(key, endpoint), name=f"syncer of {key[0]}/{key[1]}")
        self._streams[key] = _Stream(endpoint, task)

    def forget(self, key: JobKey) -> None:
        self._end(key)
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
            try:
                async with self._channel(endpoint, self._now()) as channel:
                    async for report in self._reports_of(channel, endpoint):
                        failures, good = 0, good + 1
                        if good >= _GOOD_REPORTS:
                            abuses = 0
                        self._take(key, report)
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
            # What is not read stays with the syncer: the stream's flow control stops it.
            next_at = loop.time() + (self._timeouts.spacing if len(raw) <= SMALL_REPORT else self._timeouts.large_spacing)
            report = await self._reader.read(raw, endpoint.most_units, self._now(), endpoint.pod_uid)
            del raw
            yield report
            await asyncio.sleep(next_at - loop.time())

    def _take(self, key: JobKey, report: Report) -> None:
        if self._on_report is not None:
            self._on_report(key, report)
        before = self._reports.get(key)
        self._reports[key] = replace(report, entries=())
        stream = self._streams[key]
        urgent = before is None or before.pod_uid != report.pod_uid or matters(before) != matters(report)
        urgent = self._faults.pop(key, None) is not None or urgent
        loop_now = asyncio.get_running_loop().time()
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


_WATCH = f"/{diloco_pb2.DESCRIPTOR.services_by_name['Syncer'].full_name}/Watch"
_GOOD_REPORTS = 10
"""After so many reports in a row that can be read, an unreadable one counts as the first again."""


@dataclass(slots=True)
class _Stream:
    endpoint: Endpoint
    task: asyncio.Task[None]
    end: asyncio.TimerHandle | None = None
    """Ends it soon: its syncer does not run any more."""
    notified: float = float("-inf")
    """When the operator was last notified, on the event loop's clock."""


class UnreadableReport(ValueError):
    """The report is larger than the job's may be, or contains something that this operator does not know, for example because the syncer is
    newer."""

    def __init__(self, fault: ReportFault) -> None:
        super().__init__(fault.text)
        self.fault = fault


class ReportReader:
    """Turns reports from bytes into checked, plain data, outside the event loop. Large ones are read one after the other, and after each
    the next one waits: the operator spends no more than a part of its time on them, whatever their syncers send. Small reports wait for
    none of this."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._small = ThreadPoolExecutor(1, "report")
        self._large = ThreadPoolExecutor(1, "large-report")

    async def read(self, raw: bytes, most_units: int, received_at: float, pod_uid: str = "") -> Report:
        """Return the report in `raw`, of a job of at most so many units. Raises `UnreadableReport`."""
        loop = asyncio.get_running_loop()
        if len(raw) <= SMALL_REPORT:
            return (await loop.run_in_executor(self._small, _read, raw, most_units, received_at, pod_uid)).result()
        async with self._turn:
            found = await loop.run_in_executor(self._large, _read, raw, most_units, received_at, pod_uid)
            await asyncio.sleep(_REST * found.seconds)
        return found.result()

    def close(self) -> None:
        """Read no more."""
        self._small.shutdown(wait=False, cancel_futures=True)
        self._large.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Read:
    """What a thread made of a report, and the processor time that it took."""

    found: Report | UnreadableReport
    seconds: float

    def result(self) -> Report:
        if isinstance(self.found, UnreadableReport):
            raise self.found
        return self.found


def _read(raw: bytes, most_units: int, received_at: float, pod_uid: str) -> _Read:
    began = time.thread_time()
    found: Report | UnreadableReport
    try:
        found = report_of(diloco_pb2.Report.FromString(raw), received_at, pod_uid, most_units)
    except DecodeError:
        found = UnreadableReport(ReportFault(FaultKind.MALFORMED, "the syncer sends what is no report"))
    except UnreadableReport as error:
        found = error
    return _Read(found, time.thread_time() - began)


def matters(report: Report) -> object:
    """Return the part of a report that reconcile must see at once. The rest is progress, which can wait a moment."""
    units = tuple(
        (u.unit, u.attempt, u.phase, tuple(sorted(u.refused.items())), u.message, u.pause, u.holds_parameters)
        for u in report.units.values()
    )
    return units, report.ending, report.seeded, report.done, report.draining, report.snapshot_error, report.message


_PHASES = {
    diloco_pb2.UnitReport.JOINING: UnitPhase.JOINING,
    diloco_pb2.UnitReport.CONTRIBUTING: UnitPhase.CONTRIBUTING,
    diloco_pb2.UnitReport.DISCONNECTED: UnitPhase.DISCONNECTED,
    diloco_pb2.UnitReport.DONE: UnitPhase.DONE,
    diloco_pb2.UnitReport.REFUSED: UnitPhase.REFUSED,
}


def report_of(wire: diloco_pb2.Report, received_at: float, pod_uid: str = "", most_units: int = MAX_LEARNERS) -> Report:
    """Return a report of the syncer in this pod, from the wire, as plain data, bounded: the syncer's image may be any program's. Raises
    `UnreadableReport`."""
    _check_count(len(wire.units), most_units, "units")
    _check_count(max(len(wire.losses), len(wire.held_out_losses)), _MOST_POINTS_READ, "points of a loss history")
    _check_count(len(wire.entries), _MOST_ENTRIES, "entries at once")
    return Report(
        received_at=received_at,
        pod_uid=pod_uid,
        t=_count(wire.t),
        steps=_count(wire.steps),
        tokens=_count(wire.tokens),
        tokens_per_second=_figure(wire.tokens_per_second),
        loss=_loss(wire.loss) if wire.HasField("loss") else None,
        held_out_loss=_loss(wire.held_out_loss) if wire.HasField("held_out_loss") else None,
        step_seconds=_figure(wire.step_seconds),
        seeded=wire.seeded,
        done=wire.done,
        snapshot_t=min(wire.snapshot_t, MOST_COUNT),
        snapshot=snapshot_path(wire.snapshot),
        snapshot_copied=wire.snapshot_copied,
        snapshot_error=clip(wire.snapshot_error),
        message=clip(wire.message),
        draining=wire.draining,
        token_budget=_count(wire.token_budget),
        ending=_ending(wire.ending) if wire.HasField("ending") else None,
        contributions=_count(wire.contributions),
        work_refused=_count(wire.work_refused),
        cosine=min(1.0, max(-1.0, wire.cosine)) if wire.HasField("cosine") and math.isfinite(wire.cosine) else None,
        losses=_curve(wire.losses, MOST_LOSS_POINTS),
        held_out_losses=_curve(wire.held_out_losses, MOST_HELD_OUT_POINTS),
        units={unit.unit: _unit_of(unit) for unit in wire.units},
        samples=_count(wire.samples),
        incarnation=wire.incarnation[:_INCARNATION_BYTES].hex(),
        clock=_figure(wire.clock),
        entries=_entries(wire.entries, most_units),
    )


SMALL_REPORT = 64 << 10
"""Bytes. A larger report has to wait for its turn."""
_REST = 3.0
"""After a large report no other one is read for so many times the time that it took: all together take a quarter of the loop's time."""
_MOST_REASONS = 32
"""Reasons for a refusal that a unit can have, with room for those of newer syncers."""
_REASON_LIMIT = 64
_UNIT_LIMIT = 63
_PAUSE_LIMIT = 200


def _ending(wire: diloco_pb2.Ending) -> Ending:
    return Ending(ENDED_BY_TOKENS if wire.cause == diloco_pb2.Ending.TOKENS else ENDED_BY_PROGRAM, _count(wire.t))


def _count(value: int) -> int:
    return min(max(value, 0), MOST_COUNT)


def _figure(value: float) -> float:
    """Return speeds, shares and durations: 0 for what is none."""
    return value if 0 <= value < math.inf else 0.0


def _loss(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _curve(wire: Iterable[diloco_pb2.LossPoint], most: int) -> tuple[LossPoint, ...]:
    """Return the points that a curve can have, in ascending order; of more than `most`, every n-th and the last."""
    found: list[LossPoint] = []
    for point in wire:
        if 0 <= point.t <= MOST_COUNT and math.isfinite(point.loss) and (not found or point.t > found[-1].step):
            found.append(LossPoint(point.t, point.loss))
    if len(found) > most:
        found = [*found[: -1 : -(-(len(found) - 1) // (most - 1))], found[-1]]
    return tuple(found)


_MOST_POINTS_READ = 4096
_MOST_ENTRIES = 4096
_INCARNATION_BYTES = 16


def _entries(wire: Iterable[diloco_pb2.Entry], most_units: int) -> tuple[Entry, ...]:
    found = ((entry, _what_happened(entry, most_units)) for entry in wire)
    return tuple(Entry(_count(entry.number), _figure(entry.at), what) for entry, what in found if what is not None)


def _what_happened(wire: diloco_pb2.Entry, most_units: int) -> LocalStep | Merge | None:
    """Read an entry; None: a newer syncer says something that this operator does not know."""
    match wire.WhichOneof("what"):
        case "step":
            step = wire.step
            return LocalStep(
                unit=clip(step.unit, _UNIT_LIMIT),
                attempt=_count(step.attempt),
                step=_count(step.local_step),
                seconds=step.step_seconds if 0 <= step.step_seconds < math.inf else None,
                loss=_loss(step.loss),
                samples=_count(step.samples_done),
                tokens=_count(step.tokens_done),
            )
        case "merge":
            merge = wire.merge
            _check_count(len(merge.units), most_units, "units in a merge")
            units = tuple(clip(unit, _UNIT_LIMIT) for unit in merge.units)
            return Merge(_count(merge.t), _count(merge.fragment), units, _loss(merge.loss) if merge.HasField("loss") else None)
        case _:
            return None


def _check_count(count: int, most: int, what: str) -> None:
    if count > most:
        raise UnreadableReport(ReportFault(FaultKind.TOO_MANY_FIELDS, f"the syncer reports more than {most} {what}"))


def _unit_of(wire: diloco_pb2.UnitReport) -> UnitReport:
    phase = _PHASES.get(wire.state)
    if phase is None:
        text = (
            f"the syncer reports state {wire.state} of unit {clip(wire.unit, 64)}, which this operator does not know; update the operator"
        )
        raise UnreadableReport(ReportFault(FaultKind.MALFORMED, text))
    _check_count(len(wire.refused), _MOST_REASONS, "reasons for refusals of a unit")
    return UnitReport(
        unit=wire.unit,
        attempt=wire.attempt,
        phase=phase,
        **{name: read(getattr(wire, name)) for name, read in _READERS},
        contributions=_count(wire.contributions),
        seconds_since_heard=_figure(wire.seconds_since_heard),
        loss=_loss(wire.loss) if wire.HasField("loss") else None,
        message=clip(wire.message),
        local_step=_count(wire.local_step),
        step_seconds=_figure(wire.step_seconds),
        recover_seconds=_figure(wire.recover_seconds),
        resting_seconds=_figure(wire.resting_seconds),
        seconds_since_alive=_figure(wire.seconds_since_alive),
        pause=one_line(wire.pause, _PAUSE_LIMIT),
        pause_left=min(_figure(wire.pause_left), MOST_PAUSE),
        holds_parameters=wire.holds_parameters,
        received_bytes=_count(wire.received_bytes),
        sent_bytes=_count(wire.sent_bytes),
        recovery=_recovery(wire.recovery) if wire.HasField("recovery") else None,
        given=_count(wire.given),
    )


def _reasons(value: Mapping[str, int]) -> dict[str, int]:
    return {clip(reason, _REASON_LIMIT): _count(value[reason]) for reason in sorted(value)}


def _reader_of(name: str) -> Callable[[Any], Any]:
    """Return what bounds a figure of a unit. 0 of one that may be absent says that there is nothing to say yet."""
    match getattr(diloco_pb2.UnitReport(), name):
        case bool():
            return bool
        case int():
            return _count if KEYS[name] in DEFAULTS else lambda value: _count(value) or None
        case float():
            return _figure
        case _:
            return _reasons


_READERS = [(name, _reader_of(name)) for name in FIGURES]


def _recovery(wire: diloco_pb2.Recovery) -> Recovery | None:
    phase = _RECOVERY_PHASES.get(wire.phase)
    if phase is None:
        return None
    return Recovery(
        phase=phase,
        unit=one_line(wire.unit, _PAUSE_LIMIT),
        why=one_line(wire.why, _PAUSE_LIMIT),
        stored_at=_count(wire.t) if wire.stored else None,
        bytes=_count(wire.bytes),
        start_seconds=_figure(wire.start_seconds),
        parameters_seconds=_figure(wire.parameters_seconds),
        donor_seconds=_figure(wire.donor_seconds),
        wait_seconds=_figure(wire.wait_seconds),
        copy_seconds=_figure(wire.copy_seconds),
        first_step_seconds=_figure(wire.first_step_seconds),
    )


_RECOVERY_PHASES = {
    diloco_pb2.Recovery.WANTED: RecoveryPhase.WANTED,
    diloco_pb2.Recovery.COPYING: RecoveryPhase.COPYING,
    diloco_pb2.Recovery.OVER: RecoveryPhase.OVER,
}
