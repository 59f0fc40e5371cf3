"""Jobs, scenes and weeks for the trace of placement, as a test says them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.trace.inputs import Outage, Slice, TraceJob
from benchmarks.trace.scene import Present, Scene
from benchmarks.trace.world import Week

SPEEDS = {"fast": 2000.0, "slow": 1000.0}


def a_trace_job(key: str = "job", size: int = 1, speeds: Mapping[str, float] | None = None, **fields: object) -> TraceJob:
    """Unless told otherwise, its order that knows nothing begins with the slow kind."""
    given: dict[str, object] = {"created": 0.0, "run_time": 1000.0, "tokens": 1e6, "at_random": ("slow", "fast"), **fields}
    return TraceJob(key=key, size=size, speeds=dict(speeds or SPEEDS), **given)  # type: ignore[arg-type]


def present(job: TraceJob, held: Mapping[str, int] | None = None, settling: Mapping[str, int] | None = None, measured: str = "") -> Present:
    """A job that has units is admitted. `measured`: kinds, with spaces between them."""
    return Present(job, held or {}, settling or {}, bool(held), frozenset(measured.split()))


def a_scene(free: Mapping[str, int], *jobs: Present) -> Scene:
    """`free`: kind -> slices."""
    return Scene(free, tuple(sorted(jobs, key=lambda each: (each.job.created, each.job.key))))


def a_week(kinds: Sequence[str], *jobs: TraceJob, outages: Sequence[Outage] = (), seconds: float = 10_000.0) -> Week:
    """`kinds`: of its slices."""
    return Week(tuple(Slice(kind) for kind in kinds), tuple(outages), jobs, seconds)
