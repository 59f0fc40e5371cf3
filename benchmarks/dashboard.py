"""[dashboard-first-paint, dashboard-update] The dashboard in Chromium, with 1,000 units in 20 jobs.

The first is the time from the request for a page until the browser has painted it, the server's work included: the slowest page, the median
of its loads. The second is processor time of the browser's main thread for one update, with script, style, layout and paint: every figure
of every unit of a job changes, and its page is open; `wall_ms` in the line is the same by the clock on the wall, `script_ms` the script
alone. `server_ms` is what the server takes to gather all jobs.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

from builders.jobs import JobBuilder
from diloco_cli.dashboard.server import Dashboard, serving
from diloco_local.memory import MemoryApi
from diloco_local.pod_logs import LocalPodLogs
from diloco_operator.api.crd import build_crd
from diloco_operator.api.names import CUSTOM_RESOURCES, DILOCO_JOBS
from playwright.async_api import Browser, Page, async_playwright, expect

from benchmarks.figure import Figure
from benchmarks.reference import usual_figure

PAINT_MS, UPDATE_MS = 1000.0, 50.0
JOBS, UNITS = 20, 50
PAGES = ("", "jobs/default/job-00", "jobs/default/job-00/units/v5p-0", "waiting", "goodput")
MOMENT = "2026-11-20T21:00:00Z"


def a_status(step: int, units: int) -> dict[str, Any]:
    """The status of a job at an outer step. Every figure follows from the step, so that all change with it."""
    states = ("Training",) * 8 + ("BackingOff", "Joining")
    unit_list = [
        {
            "name": f"v5p-{index}",
            "pool": "v5p",
            "state": states[index % len(states)],
            "slice": f"np-{index}",
            "attempt": 1 + index % 3,
            "since": MOMENT,
            "tokensPerSecond": 1000.0 + step + index,
            "weight": 1 / units,
            "staleness": (step + index) % 9,
            "tokens": 1000 * step + index,
            "steps": step,
            "message": "the program exited with status 1; see its log" if index % 10 == 8 else "",
        }
        for index in range(units)
    ]
    condition = {"type": "Training", "status": "True", "reason": "QuorumContributing", "message": "", "lastTransitionTime": MOMENT}
    seconds = {"training": 1000.0 * step, "start": 500.0, "recovery": 100.0 + step}
    return {
        "state": "Training",
        "reason": "QuorumContributing",
        "conditions": [condition],
        "progress": {
            "step": step,
            "steps": 100_000,
            "tokens": 1000 * step,
            "tokensPerSecond": 1000.0 * units,
            "loss": 2.5,
            "losses": " ".join(f"{number}:{5 - number / 20:.3f}" for number in range(1, 65)),
        },
        "learners": {"desired": units, "placed": units, "contributing": units * 8 // 10, "min": 1, "max": units},
        "goodput": {"productiveShare": 0.9, "interruptions": 3, "unitSeconds": seconds, "measuredAt": MOMENT},
        "units": unit_list,
        "pools": [{"name": "v5p", "placed": units, "contributing": units, "reason": "AtMaximum", "message": "it has all of its units"}],
    }


async def a_cluster(jobs: int, units: int) -> MemoryApi:
    api = MemoryApi()
    await api.create(CUSTOM_RESOURCES, build_crd())
    for number in range(jobs):
        await api.create(
            DILOCO_JOBS, JobBuilder(f"job-{number:02}").in_namespace("default").with_learners(1, units).with_pool(max=units).build()
        )
        await at_step(api, number, 1, units)
    return api


async def at_step(api: MemoryApi, number: int, step: int, units: int) -> None:
    status = {"status": a_status(step, units)}
    await api.patch(DILOCO_JOBS, "default", f"job-{number:02}", status, subresource="status")


async def first_paint(browser: Browser, url: str) -> float:
    """Milliseconds until a new page is painted that no earlier load has warmed up."""
    page = await browser.new_page()
    try:
        await page.goto(url)
        await expect(page.locator("#connection")).to_have_text("live", timeout=60_000)
        # Wait for the paint itself: on an idle machine the document has the text before it is painted.
        painted = await page.wait_for_function("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
        return float(await painted.json_value())
    finally:
        await page.close()


class Update(NamedTuple):
    """Milliseconds of the browser's main thread for one update."""

    processor: float
    """Processor time, to which other work on the machine adds nothing."""
    wall: float
    """Wall-clock time of the same tasks."""
    script: float
    """Wall-clock time of the script alone, in the slowest update."""


async def updates(page: Page, api: MemoryApi, count: int, units: int) -> Update:
    """Change all units of the job `count` times, and return what one update takes."""
    clocks = [await page.context.new_cdp_session(page) for _ in range(2)]
    for clock, domain in zip(clocks, ("threadTicks", "timeTicks"), strict=True):
        await clock.send("Performance.enable", {"timeDomain": domain})

    async def spent() -> list[float]:
        metrics = [(await clock.send("Performance.getMetrics"))["metrics"] for clock in clocks]
        return [float(next(each["value"] for each in of if each["name"] == "TaskDuration")) for of in metrics]

    step = page.locator("#head dd").first
    before = await spent()
    for number in range(2, 2 + count):
        await at_step(api, 0, number, units)
        await expect(step).to_have_text(f"{number:,} of 100,000", timeout=60_000)
    after = await spent()
    slowest = await page.evaluate("Math.max(...performance.getEntriesByName('update', 'measure').map(entry => entry.duration))")
    processor, wall = ((end - start) * 1000 / count for start, end in zip(before, after, strict=True))
    return Update(processor, wall, float(slowest))


async def in_a_browser(served: Dashboard, api: MemoryApi, loads: int, units: int) -> tuple[dict[str, float], Update]:
    """The first paint of each page in milliseconds, and the update of a job's page."""
    program = shutil.which("chromium")
    if program is None:
        raise RuntimeError("Chromium is not installed: apt-get install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            paints = {path: median([await first_paint(browser, f"{served.url}{path}") for _ in range(loads)]) for path in PAGES}
            page = await browser.new_page()
            await page.goto(f"{served.url}{PAGES[1]}")
            await expect(page.locator("#connection")).to_have_text("live", timeout=60_000)
            update = await updates(page, api, loads * 4, units)
        finally:
            await browser.close()
    return paints, update


async def measured(jobs: int, units: int, loads: int) -> tuple[dict[str, float], Update, float]:
    api = await a_cluster(jobs, units)
    async with serving(api, LocalPodLogs(lambda _namespace, _pod, _container: ([], False)), "") as served:
        paints, update = await in_a_browser(served, api, loads, units)
        started = time.perf_counter()
        served.source.jobs()
        server = (time.perf_counter() - started) * 1000
    return paints, update, server


def measure(*, smoke: bool) -> Iterator[Figure]:
    jobs, units, loads = (2, 10, 1) if smoke else (JOBS, UNITS, 5)
    paints, update, server = asyncio.run(measured(jobs, units, loads))
    slowest = max(paints.values())
    size = f"{jobs * units} units in {jobs} jobs"
    pages = {path or "fleet": round(value, 1) for path, value in paints.items()}
    yield Figure(
        "dashboard-first-paint", slowest, f"ms, {size}", PAINT_MS, slowest <= PAINT_MS, loads, {"by_page": pages, "server_ms": server}
    )
    times = {"wall_ms": update.wall, "script_ms": update.script}
    yield usual_figure("dashboard-update", update.processor, f"ms of the main thread, {size}", UPDATE_MS, loads * 4, times)
