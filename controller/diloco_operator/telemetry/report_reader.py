"""Reads reports beside the event loop, so that no job's syncer takes the operator's time from the others.

See docs/decisions/0041-what-a-syncer-says.md.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from diloco.protocol import diloco_pb2
from google.protobuf.message import DecodeError

from diloco_operator.report import FaultKind, Report, ReportFault
from diloco_operator.telemetry.wire_report import UnreadableReport, report_of

SMALL_REPORT = 64 << 10
"""Bytes. A larger report has to wait for its turn."""
_REST = 3.0
"""The pause after a large report, as a multiple of the time that it took. So large reports take a quarter of the loop's time at most."""


class ReportReader:
    """Turns reports from bytes into checked, plain data, outside the event loop. Large reports are read one after the other, with a pause
    after each: the operator spends no more than a part of its time on them, whatever their syncers send. Small reports do not wait for
    large ones."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._small = ThreadPoolExecutor(1, "report")
        self._large = ThreadPoolExecutor(1, "large-report")

    async def read(self, raw: bytes, most_units: int, received_at: float, pod_uid: str = "") -> Report:
        """Return the report in `raw`, which may have at most `most_units` units. Raises `UnreadableReport`."""
        loop = asyncio.get_running_loop()
        if len(raw) <= SMALL_REPORT:
            return (await loop.run_in_executor(self._small, _read, raw, most_units, received_at, pod_uid)).result()
        async with self._turn:
            outcome = await loop.run_in_executor(self._large, _read, raw, most_units, received_at, pod_uid)
            await asyncio.sleep(_REST * outcome.seconds)
        return outcome.result()

    def close(self) -> None:
        self._small.shutdown(wait=False, cancel_futures=True)
        self._large.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Read:
    """What a thread made of a report, and the processor time that it took."""

    outcome: Report | UnreadableReport
    seconds: float

    def result(self) -> Report:
        if isinstance(self.outcome, UnreadableReport):
            raise self.outcome
        return self.outcome


def _read(raw: bytes, most_units: int, received_at: float, pod_uid: str) -> _Read:
    began = time.thread_time()
    result: Report | UnreadableReport
    try:
        result = report_of(diloco_pb2.Report.FromString(raw), received_at, pod_uid, most_units)
    except DecodeError:
        result = UnreadableReport(ReportFault(FaultKind.MALFORMED, "the syncer sends what is no report"))
    except UnreadableReport as error:
        result = error
    return _Read(result, time.thread_time() - began)
