"""A fixed amount of pure Python. Processor times of the same run are divided by its time, so that a slow machine slows both alike.

One *pass* is 2,048 turns. A turn looks up a small frozen record by its name, reads its attributes, calls its method, replaces it by a new
record with numbers, a tuple and a string, and counts in a second dict. The turns use 1,024 functions with the same bytecode: measured code
is more than a processor's caches keep, so a pass must be, too. A pass takes 1 to 7 ms of a core, by the machine and its day. Never change
it: that would change every figure that is divided by it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from types import FunctionType, MappingProxyType

from benchmarks.figure import Figure

TURNS = 2048
FUNCTIONS = 1024
FIRST = 1000
"""Counts begin here. Python shares the objects of small numbers; with larger ones each count makes a new object."""
USUAL_SECONDS = 0.00224
"""Seconds of a pass when most of the times in docs/results were measured."""


@dataclass(frozen=True, slots=True)
class Record:
    name: str
    steps: int
    span: tuple[int, int]

    def over(self, count: int) -> bool:
        return count >= self.span[1]


type Records = dict[str, Record]
type Counts = dict[str, int]


def _turn(records: Records, counts: Counts, name: str) -> None:
    record = records[name]
    begin, end = record.span
    if record.over(counts[name]):
        begin, end = end, end + 1
    records[name] = Record(name[:9], record.steps + 1, (begin, end))
    counts[name] += 1


_NAMES = [f"unit-{number:05}" for number in range(TURNS)]
_records = {name: Record(name, FIRST, (FIRST - 1, FIRST)) for name in _NAMES}
_counts = dict.fromkeys(_NAMES, FIRST)
_TURNS = [FunctionType(_turn.__code__.replace(co_firstlineno=number + 1), globals()) for number in range(FUNCTIONS)] * (TURNS // FUNCTIONS)


def pass_seconds() -> float:
    """The processor time of one pass in this thread. The garbage collector is off meanwhile: it would walk the caller's objects."""
    collects = gc.isenabled()
    gc.disable()
    try:
        begin = time.thread_time()
        for turn, name in zip(_TURNS, _NAMES, strict=True):
            turn(_records, _counts, name)
        return time.thread_time() - begin
    finally:
        if collects:
            gc.enable()


def pace() -> float:
    """How fast this machine is now: the usual time of a pass ÷ that of one now. Milliseconds of the processor × pace are *usual
    milliseconds*, which can be compared between machines and days."""
    return USUAL_SECONDS / median(pass_seconds() for _ in range(21))


def usual_figure(
    name: str, value: float, unit: str, limit: float, runs: int = 1, times: Mapping[str, float] = MappingProxyType({})
) -> Figure:
    """A time of at most `limit`, in usual seconds or milliseconds as `unit` says. Call it right after the work: it measures the pace.

    Args:
        times: further ones for the line.
    """
    at = pace()
    details = {what: time * at for what, time in times.items()} | {"pace": at}
    return Figure(name, value * at, f"usual {unit}", limit, value * at <= limit, runs, details)


def in_passes(measure: Callable[[], float]) -> tuple[float, float]:
    """(seconds of processor time that `measure` returns, the same over the time of a pass right after it)."""
    seconds = measure()
    return seconds, seconds / pass_seconds()
