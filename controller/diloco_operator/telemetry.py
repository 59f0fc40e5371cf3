"""Reports from the jobs' syncers: one `Watch` stream for each job whose syncer runs.

The operator says where each job's syncer is (`Telemetry.follow`), and is notified when a report contains something that it should handle.
Nothing is decided here. Reconcile decides what a missing or an old report means.

See docs/decisions/0041-syncer-observation.md.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

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
from diloco.protocol.diloco_pb2_grpc import SyncerStub
from diloco.wording import one_line

from diloco_operator.api.job import MAX_LEARNERS, MAX_POOLS
from diloco_operator.certificates.authority import Authority, Leaf
from diloco_operator.certificates.issuing import Issuer
from diloco_operator.kube.fields import MOST_COUNT, clip
from diloco_operator.report import Ending, LossPoint, Report, UnitPhase, UnitReport, snapshot_path
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

    @property
    def address(self) -> str:
        """`host:port` as gRPC wants it; an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Telemetry(Protocol):
    """The operator's source of reports."""

    def on_change(self, notify: Callable[[JobKey], None]) -> None:
        """Call `notify` with a job's key when its report changed."""
        ...

    def follow(self, key: JobKey, endpoint: Endpoint | None) -> None:
        """The job's syncer is at `endpoint` from now on; None: it does not run. Idempotent: called at every reconcile."""
        ...

    def forget(self, key: JobKey) -> None:
        """The job is gone."""
        ...

    def latest(self, key: JobKey) -> Report | None:
        """The last report of the job's syncer, however old; None: none since this operator started."""
        ...

    async def close(self) -> None:
        """End every stream."""
        ...


def open_channel(endpoint: Endpoint, now: float) -> grpc.aio.Channel:
    """A separate channel to each syncer, with a new certificate. The operator has its own back-off for reconnects, and a proxy from the
    environment must not be used."""
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
            ("grpc.max_receive_message_length", 16 << 20),
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
    ) -> None:
        self._now = now
        self._rng = rng
        self._timeouts = timeouts or TelemetryTimeouts()
        self._channel = channel
        self._notify: list[Callable[[JobKey], None]] = []
        self._large = LargeReports()
        self._streams: dict[JobKey, _Stream] = {}
        self._reports: dict[JobKey, Report] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def on_change(self, notify: Callable[[JobKey], None]) -> None:
        self._notify.append(notify)

    def follow(self, key: JobKey, endpoint: Endpoint | None) -> None:
        stream = self._streams.get(key)
        if stream is not None:
            if stream.endpoint == endpoint:
                return
            self._end(key)
        if endpoint is not None:
            task = asyncio.get_running_loop().create_task(self._run(key, endpoint), name=f"syncer of {key[0]}/{key[1]}")
            self._streams[key] = _Stream(endpoint, task)

    def forget(self, key: JobKey) -> None:
        self._end(key)
        self._reports.pop(key, None)

    def latest(self, key: JobKey) -> Report | None:
        return self._reports.get(key)

    async def close(self) -> None:
        for key in list(self._streams):
            self._end(key)
        if self._ending:
            await asyncio.wait(self._ending)

    def _end(self, key: JobKey) -> None:
        stream = self._streams.pop(key, None)
        if stream is not None:
            stream.task.cancel()
            self._ending.add(stream.task)
            stream.task.add_done_callback(self._ending.discard)

    async def _run(self, key: JobKey, endpoint: Endpoint) -> None:
        """Follow one syncer until cancelled, over any number of connections."""
        failures = 0
        while True:
            try:
                async with self._channel(endpoint, self._now()) as channel:
                    async for report in self._reports_of(channel, endpoint.pod_uid):
                        failures = 0
                        self._take(key, report)
                why = "the stream ended"
            except TimeoutError:
                why = f"no report for {self._timeouts.read:.0f} s"
            except grpc.aio.AioRpcError as error:
                why = f"{error.code().name}: {clip(error.details() or '')}"
            except UnreadableReport as error:
                why = str(error)
            except Exception as error:  # a defect that shows in one job: the stream must not end for good without a word
                log.exception("the reports of %s/%s cannot be read: this is a defect, please report it", *key)
                why = type(error).__name__
            failures += 1
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

    async def _reports_of(self, channel: grpc.aio.Channel, pod_uid: str) -> AsyncIterator[Report]:
        request = diloco_pb2.WatchRequest(interval_seconds=self._timeouts.interval)
        call = SyncerStub(channel).Watch(request)
        loop = asyncio.get_running_loop()
        while True:
            async with asyncio.timeout(self._timeouts.read):
                wire = await call.read()
            if wire is grpc.aio.EOF:
                return
            read_at = loop.time()
            yield await self._large.report_of(wire, self._now(), pod_uid)
            # What is not read stays with the syncer: the stream's flow control stops it.
            await asyncio.sleep(read_at + self._timeouts.spacing - loop.time())

    def _take(self, key: JobKey, report: Report) -> None:
        before = self._reports.get(key)
        self._reports[key] = report
        stream = self._streams[key]
        urgent = before is None or before.pod_uid != report.pod_uid or matters(before) != matters(report)
        loop_now = asyncio.get_running_loop().time()
        if urgent or loop_now - stream.notified >= self._timeouts.notify_interval:
            stream.notified = loop_now
            for notify in self._notify:
                notify(key)


@dataclass(slots=True)
class _Stream:
    endpoint: Endpoint
    task: asyncio.Task[None]
    notified: float = float("-inf")
    """When the operator was last notified, on the event loop's clock."""


class UnreadableReport(ValueError):
    """The report contains something that this operator does not know, for example because the syncer is newer."""


class LargeReports:
    """Turns the reports of jobs with many units into plain data, one after the other and in slices, so that the event loop does other work
    between them. The operator spends no more than a part of its time on them, whatever their syncers send: after each the next one waits.
    Small reports wait for none of this."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def report_of(self, wire: diloco_pb2.Report, received_at: float, pod_uid: str = "") -> Report:
        """As `report_of`."""
        if not SLICE < len(wire.units) <= _MOST_UNITS:
            return report_of(wire, received_at, pod_uid)
        async with self._turn:
            busy, units = 0.0, dict[str, UnitReport]()
            for start in range(0, len(wire.units), SLICE):
                began = time.perf_counter()
                units |= {unit.unit: _unit_of(unit) for unit in wire.units[start : start + SLICE]}
                busy += time.perf_counter() - began
                await asyncio.sleep(0)
            await asyncio.sleep(_REST * busy)
        return report_of(wire, received_at, pod_uid, units)


def matters(report: Report) -> object:
    """The part of a report that reconcile must see at once. The rest is progress, which can wait a moment."""
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


def report_of(wire: diloco_pb2.Report, received_at: float, pod_uid: str = "", units: Mapping[str, UnitReport] | None = None) -> Report:
    """A report of the syncer in this pod, from the wire, as plain data, bounded: the syncer's image may be any program's. `units`: its
    units, if they have been read already. Raises `UnreadableReport`."""
    if len(wire.units) > _MOST_UNITS:
        raise UnreadableReport(f"the syncer reports {len(wire.units)} units; a job has {_MOST_UNITS} at most")
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
        losses=_curve(wire.losses, MOST_LOSS_POINTS),
        held_out_losses=_curve(wire.held_out_losses, MOST_HELD_OUT_POINTS),
        units={unit.unit: _unit_of(unit) for unit in wire.units} if units is None else units,
    )


_MOST_UNITS = MAX_POOLS * MAX_LEARNERS
"""Units that a job can ever have."""
SLICE = 128
"""Units that are read from a report in one go: some milliseconds."""
_REST = 3.0
"""After a large report no other one is read for so many times the time that it took: all together take a quarter of the loop's time."""
_MOST_REASONS = 32
_REASON_LIMIT = 64
_PAUSE_LIMIT = 200


def _ending(wire: diloco_pb2.Ending) -> Ending:
    return Ending(ENDED_BY_TOKENS if wire.cause == diloco_pb2.Ending.TOKENS else ENDED_BY_PROGRAM, _count(wire.t))


def _count(value: int) -> int:
    return min(max(value, 0), MOST_COUNT)


def _figure(value: float) -> float:
    """Speeds, shares and durations: 0 for what is none."""
    return value if 0 <= value < math.inf else 0.0


def _loss(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _curve(wire: Iterable[diloco_pb2.LossPoint], most: int) -> tuple[LossPoint, ...]:
    """The points that a curve can have, in ascending order; of more than `most`, every n-th and the last."""
    found: list[LossPoint] = []
    for point in itertools.islice(wire, _MOST_POINTS_READ):
        if 0 <= point.t <= MOST_COUNT and math.isfinite(point.loss) and (not found or point.t > found[-1].step):
            found.append(LossPoint(point.t, point.loss))
    if len(found) > most:
        found = [*found[: -1 : -(-(len(found) - 1) // (most - 1))], found[-1]]
    return tuple(found)


_MOST_POINTS_READ = 4096


def _unit_of(wire: diloco_pb2.UnitReport) -> UnitReport:
    phase = _PHASES.get(wire.state)
    if phase is None:
        raise UnreadableReport(
            f"the syncer reports state {wire.state} of unit {clip(wire.unit, 64)}, which this operator does not know; update the operator"
        )
    return UnitReport(
        unit=wire.unit,
        attempt=wire.attempt,
        phase=phase,
        steps=_count(wire.steps),
        tokens=_count(wire.tokens),
        tokens_per_second=_figure(wire.tokens_per_second),
        weight=_figure(wire.weight),
        staleness=_count(wire.staleness),
        contributions=_count(wire.contributions),
        seconds_since_heard=_figure(wire.seconds_since_heard),
        loss=_loss(wire.loss) if wire.HasField("loss") else None,
        refused={clip(reason, _REASON_LIMIT): _count(wire.refused[reason]) for reason in sorted(wire.refused)[:_MOST_REASONS]},
        message=clip(wire.message),
        local_step=_count(wire.local_step),
        step_seconds=_figure(wire.step_seconds),
        recover_seconds=_figure(wire.recover_seconds),
        steps_per_sync=_count(wire.steps_per_sync),
        resting_seconds=_figure(wire.resting_seconds),
        seconds_since_alive=_figure(wire.seconds_since_alive),
        pause=one_line(wire.pause, _PAUSE_LIMIT),
        pause_left=min(_figure(wire.pause_left), MOST_PAUSE),
        own_data=wire.own_data,
        holds_parameters=wire.holds_parameters,
    )
