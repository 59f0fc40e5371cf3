"""[rejoin-*, donor-tax-*] The time until a unit's first merged contribution with the state of a peer, and what that costs the peer.

Two units train, and a third starts. `rejoin` is the time from the start of its process to its first merged contribution. It is divided by
the sum of these: twice the time of a bare copy of as many bytes over loopback, one interval of H outer steps, and the program's own start
(imports). `donor-tax` is the donor's longest step in that time over its longest step in an equally long time before.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from builders.wire import watch
from diloco.protocol.diloco_pb2 import Recovery, Report, UnitReport, WatchRequest

from benchmarks.exchange_rig import ExchangeRig, Workload, each_run
from benchmarks.figure import Figure, rounded
from benchmarks.process_rig import longest_after

REJOIN_LIMIT, TAX_LIMIT = 1.0, 1.2
DONORS = ("a", "b")
TAKER = "c"
PROGRAM = "benchmarks.recovery_learner"
H = 24
BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class Size:
    mebibytes: int
    """Size of parameters and moments together."""
    runs: int
    step_seconds: float = 0.05
    warm_up_steps: int = 3 * H


SIZES = {"4MiB": Size(4, runs=5), "256MiB": Size(256, runs=3)}
SMOKE = Size(4, runs=1, step_seconds=0.02, warm_up_steps=2 * H)


@dataclass(frozen=True, slots=True)
class Run:
    """Times of one run, in seconds."""

    total: float
    bare_copy: float
    interval: float
    recovery: Recovery
    tax: float
    """The donor's ratio."""

    @property
    def rejoin(self) -> float:
        return self.total / (2 * self.bare_copy + self.interval + self.recovery.start_seconds + self.recovery.first_step_seconds)


def one_run(directory: Path, size: Size) -> Run:
    with ExchangeRig(directory, Workload(size.mebibytes, size.step_seconds)) as rig:
        rig.start_syncer()
        for unit in DONORS:
            rig.start_program(unit, PROGRAM)
        rig.wait_for_steps([*DONORS], size.warm_up_steps)
        started = time.monotonic()
        rig.start_program(TAKER, PROGRAM)
        report, taker = first_contribution(rig)
        end = time.monotonic()
        if not taker.recovery.unit:
            raise RuntimeError(f"the unit began without the state of a peer: {taker.recovery.why}\n{rig.logs()}")
        (steps,) = rig.steps_until([taker.recovery.unit], end)
        gap = longest_after(steps, started - (end - started), started, end)
        copied = bare_copy(taker.recovery.bytes)
    return Run(end - started, copied, H * report.step_seconds, taker.recovery, gap)


def first_contribution(rig: ExchangeRig) -> tuple[Report, UnitReport]:
    """The first report that counts a contribution of the taker, and the taker's part of it."""
    with rig.certificates.channel(rig.address, rig.certificates.operator()) as channel:
        for report in watch(channel)(WatchRequest(interval_seconds=0.1), timeout=rig.workload.timeout(100)):
            for unit in report.units:
                if unit.unit == TAKER and unit.contributions:
                    return report, unit
    raise RuntimeError(f"the unit has contributed nothing\n{rig.logs()}")


def bare_copy(size: int) -> float:
    """Seconds in which `size` bytes go over a loopback connection, from memory to memory."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = bytes(BUFFER)

        def send() -> None:
            with socket.create_connection(server.getsockname()) as sender:
                for sent in range(0, size, BUFFER):
                    sender.sendall(source[: size - sent])

        thread = threading.Thread(target=send)
        begun = time.monotonic()
        thread.start()
        connection, _ = server.accept()
        with connection:
            target, got = bytearray(size), 0
            while got < size and (count := connection.recv_into(memoryview(target)[got : got + BUFFER])):
                got += count
        taken = time.monotonic() - begun
        thread.join()
    return taken


def figures(name: str, size: Size) -> Iterator[Figure]:
    """Yield both figures, as medians of the runs."""
    runs = each_run(size.runs, lambda folder: one_run(folder, size))
    phases = {
        phase: round(median(getattr(run.recovery, f"{phase}_seconds") for run in runs), 3)
        for phase in ("start", "parameters", "donor", "wait", "copy", "first_step")
    }
    details = {
        "ratios": rounded([run.rejoin for run in runs], 3),
        "seconds": rounded([run.total for run in runs], 2),
        "bare_copy": rounded([run.bare_copy for run in runs], 3),
        "interval": rounded([run.interval for run in runs], 2),
        **phases,
    }
    rejoin, tax = median(run.rejoin for run in runs), median(run.tax for run in runs)
    yield Figure(f"rejoin-{name}", rejoin, "ratio", REJOIN_LIMIT, rejoin <= REJOIN_LIMIT, size.runs, details)
    ratios = rounded([run.tax for run in runs], 3)
    yield Figure(f"donor-tax-{name}", tax, "ratio", TAX_LIMIT, tax <= TAX_LIMIT, size.runs, {"ratios": ratios})


def measure(*, smoke: bool) -> Iterator[Figure]:
    for name, size in SIZES.items():
        yield from figures(name, SMOKE if smoke else size)
