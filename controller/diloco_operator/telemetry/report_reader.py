"""Reading of reports beside the event loop, so that no job's syncer takes the operator's time from the others.

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
"""After a large report no other one is read for so many times the time that it took: all together take a quarter of the loop's time."""


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
