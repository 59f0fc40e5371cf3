"""Takes the screenshots of docs/images: `make screenshots`, or hack/screenshots.py [FOLDER]. Needs Debian's Chromium and five minutes.

Most show the fleet of `tests/builders/shown_fleet.py` in an in-memory API server. dashboard.png shows a real run of the quick start near
its end: a unit that was killed is back, and all contribute.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from builders.browser import chromium
from builders.shown_fleet import JOB, TEAM, UNIT, a_shown_fleet, shown_logs
from diloco_cli.dashboard.server import serving
from diloco_cli.kubectl.report import reported
from playwright.async_api import Browser, async_playwright, expect

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
EXAMPLES = ROOT / "examples"
_PATIENCE = 180_000.0
_RUN = 900_000.0
"""Milliseconds, like `_PATIENCE`. Both only bound how long a failure takes."""


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture of a page."""

    name: str
    path: str
    """Path of the page behind the dashboard's token. `REPORT` means the file that `kubectl diloco report` writes."""
    shows: str
    """CSS selector of an element that must be visible before the picture is taken."""
    scheme: Literal["light", "dark"] = "light"
    width: int = 1200


REPORT = "report"
_UNIT = f"jobs/{TEAM}/{JOB}/units/{UNIT}"
SHOTS: Sequence[Shot] = (
    Shot("dashboard-fleet", "", "#quotas td"),
    Shot("dashboard-unit", _UNIT, "#log pre"),
    Shot("dashboard-unit-narrow", _UNIT, "#log pre", scheme="dark", width=400),
    Shot("dashboard-report", REPORT, "h1"),
)


async def take(browser: Browser, url: str, shot: Shot, folder: Path) -> None:
    """Write `NAME.png`, a picture of the whole page."""
    page = await browser.new_page(color_scheme=shot.scheme, viewport={"width": shot.width, "height": 800})
    await page.goto(f"{url}{shot.path}" if shot.path != REPORT else url)
    await expect(page.locator(shot.shows).first).to_be_visible(timeout=_PATIENCE)
    if shot.path != REPORT:
        await expect(page.locator("#connection")).to_have_text("live", timeout=_PATIENCE)
    await page.screenshot(path=folder / f"{shot.name}.png", full_page=True)
    await page.close()


async def take_all(folder: Path) -> None:
    """Write all pictures in `SHOTS`."""
    api, logs = await a_shown_fleet(), shown_logs()
    with tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8") as file:
        file.write(await reported(api, logs, TEAM, JOB, time.time))
        file.flush()
        async with serving(api, logs, "") as served, async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-dev-shm-usage"])
            for shot in SHOTS:
                await take(browser, served.url if shot.path != REPORT else Path(file.name).as_uri(), shot, folder)
            await browser.close()


async def take_run(folder: Path) -> None:
    """Write dashboard.png, from a real run."""
    with tempfile.TemporaryDirectory() as state:
        options = ("--state-dir", state, "--fault", "unit=h100-1,step=80,signal=KILL", "--no-report", "--dashboard", "-o", "plain")
        run = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("diloco"), "up", EXAMPLES / "quickstart.yaml", "--fleet", EXAMPLES / "fleet.yaml", *options,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        dashboard_url: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def read() -> None:
            assert run.stdout is not None
            async for line in run.stdout:
                if not dashboard_url.done() and (match := re.search(r"http://127\.0\.0\.1:\d+/[\w-]+/", line.decode())):
                    dashboard_url.set_result(match[0])

        reader = asyncio.create_task(read())
        try:
            first: set[asyncio.Future[Any]] = {dashboard_url, reader}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            assert dashboard_url.done(), "the run ended before it had a dashboard"
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-dev-shm-usage"])
                page = await browser.new_page(viewport={"width": 1200, "height": 800})
                await page.goto(f"{dashboard_url.result()}jobs/default/bytes-lm")
                await expect(page.locator("#head dd").first).to_have_text(re.compile("^6[0-9][0-9] of 700"), timeout=_RUN)
                await expect(page.locator("#head")).to_contain_text("4 of 4", timeout=_PATIENCE)
                await page.screenshot(path=folder / "dashboard.png", full_page=True)
                await browser.close()
        finally:
            with contextlib.suppress(ProcessLookupError):
                run.terminate()
            await reader
            await run.wait()


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(take_all(target))
    asyncio.run(take_run(target))
