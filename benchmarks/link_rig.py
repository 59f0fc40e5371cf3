"""A real syncer and real learners, some of them behind a narrow link."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
from builders.wire import watch
from diloco.algorithm.codec import coding_for, payload_bytes
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.protocol.diloco_pb2 import Report, UnitReport, WatchRequest

from benchmarks.exchange_rig import ExchangeRig, Workload
from benchmarks.fixed_step_learner import shapes

INTERVAL = 0.1
"""Seconds between two reports."""


@dataclass(frozen=True, slots=True)
class StepLine:
    """One step of a learner."""

    ended: float
    """Seconds of the monotonic clock."""
    queued: int
    """Pushes that waited or were under way after the step."""
    written: int
    """How often a fragment was overwritten in the step."""


class LinkRig(ExchangeRig):
    """A rig with P = H = 24 fragments, as usual, so that every outer step has a pull."""

    def __init__(self, directory: Path, workload: Workload, training: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__(directory, workload, training)
        self._folder = directory

    def start_link_learner(self, unit: str, address: str) -> subprocess.Popen[bytes]:
        """Start a learner that finds the syncer at `address`."""
        return self.start_program(unit, "benchmarks.fixed_step_learner", "--pause", str(self.pause_file(unit)), address=address)

    def pause_file(self, unit: str) -> Path:
        """While this file exists, the unit's program takes no step."""
        return self._folder / f"{unit}.pause"

    def lines(self, unit: str) -> list[StepLine]:
        """The unit's steps so far."""
        return [StepLine(float(ended), int(queued), int(written)) for ended, queued, written in self.noted(unit)]

    def reports(self) -> Iterator[Report]:
        """Yield the syncer's reports. Raises RuntimeError with the logs if the stream breaks."""
        with self.certificates.channel(self.address, self.certificates.operator()) as channel:
            try:
                yield from watch(channel)(WatchRequest(interval_seconds=INTERVAL), wait_for_ready=True)
            except grpc.RpcError as error:
                raise RuntimeError(f"the syncer's reports ended\n{self.logs()}") from error

    def report(self, reports: Iterator[Report], condition: Callable[[Report], bool], steps: int) -> Report:
        """The first report that fulfils `condition`. Raises RuntimeError with the logs if none comes in the time that `steps` outer steps
        may take."""
        for _ in range(int(self.workload.timeout(steps) / INTERVAL)):
            report = next(reports)
            if condition(report):
                return report
        raise RuntimeError(f"the syncer does not report what is waited for, at outer step {report.t}\n{self.logs()}")

    def payload(self) -> int:
        """Bytes of the largest fragment, in the job's coding."""
        layout = Layout(TensorSpec(name, shape) for name, shape in shapes(self.workload.mebibytes).items())
        training = self.job.training
        return max(payload_bytes(coding_for(training.compression), f.size) for f in make_fragments(layout, training.fragments))


def unit_of(report: Report, unit: str) -> UnitReport:
    """The report of one unit. Empty if the syncer does not know the unit yet."""
    return next((unit_report for unit_report in report.units if unit_report.unit == unit), UnitReport())
