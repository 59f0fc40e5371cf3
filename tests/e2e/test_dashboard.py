"""The dashboard in a browser: Debian's Chromium, driven by Playwright, over a job that trains on the embedded control plane."""

from __future__ import annotations

import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from builders.browsed_pages import PATIENCE, opened, opened_file, row, serious
from builders.browser import a_browser
from builders.exchange import until
from builders.local_jobs import a_quadratic_job
from builders.up_runs import Up, all_train
from playwright.sync_api import Browser, Page, expect


@pytest.mark.timeout(1800)
def test_a_browser_sees_the_job_as_the_api_has_it_and_follows_it(tmp_path: Path) -> None:
    job = a_quadratic_job("quad", steps=1_000_000, units={"v5p": 1, "h100": 1}, environment={"QUADRATIC_STEP_MS": 100})
    up = Up(tmp_path, [job], "--dashboard")
    reader = ThreadPoolExecutor(1)
    try:
        note = up.until(lambda line: line["type"] == "note" and "Dashboard" in line["message"])
        url = re.findall(r"http://127\.0\.0\.1:\d+/[\w-]+/", note["message"])[0]
        status = up.until(all_train(2))
        ended = reader.submit(up.end)  # reads on: a full pipe would hold the command, and its server with it
        complaints: list[str] = []
        with a_browser() as browser:
            page = opened(browser, url, complaints)
            assert page.locator("#jobs tbody td").all_inner_texts()[:3] == ["default", "quad", "Training"]
            assert row(page, "hardware", "tpu-v5p 2x2x1")[1] == "1 of 2, 1 free"
            assert serious(page) == []
            page.get_by_role("link", name="quad").focus()
            page.keyboard.press("Enter")
            expect(page.get_by_role("heading", level=1)).to_have_text("quad")
            expect(page.locator("#connection")).to_have_text("live", timeout=PATIENCE)
            for unit in status["units"]:
                shown = row(page, "units", unit["name"])
                assert (shown[1], shown[3], shown[4]) == ("Training", unit["slice"], str(unit["attempt"]))
            expect(page.locator("#conditions tr", has_text="QuorumContributing")).to_have_count(1)
            expect(page.locator("#timeline svg").first).to_be_visible()
            step = page.locator("#head dd").first
            before = step.inner_text()
            expect(step).not_to_have_text(before, timeout=PATIENCE)  # without a reload
            assert page.evaluate("document.documentElement.scrollWidth") == 390, "a small screen scrolls down only"
            assert width(page, "#timeline svg") >= 680, "its charts scroll by themselves, in a size that people can read"
            assert width(page, "#units .state svg") == 10, "the colour of a state takes room, and its text stays beside the next column"
            for scheme in ("dark", "light"):
                page.emulate_media(color_scheme=scheme)
                assert serious(page) == []
            clicked_slowly(page, "#units a:text-is('v5p-0')")
            expect(page.locator("#head")).to_contain_text("unit of quad, namespace default")
            expect(page.locator("#ranks tbody tr")).to_have_count(1, timeout=PATIENCE)
            assert row(page, "ranks", "0")[1:3] == ["0", "Running"]
            expect(page.locator("#log pre")).not_to_be_empty(timeout=PATIENCE)
            assert serious(page) == []
            page.get_by_role("link", name="Goodput").click()
            expect(page.locator("#jobs tbody tr")).to_have_count(1)
            assert width(page, "#jobs td svg") == 220, "the bar of shares, as wide as it is drawn"
            assert serious(page) == []
            page.get_by_role("link", name="Waiting").click()
            expect(page.locator("#jobs")).to_have_text("No job waits.")
            stranger = opened_elsewhere(browser, url)
            assert stranger == [403, 403]
        assert not complaints, complaints
        up.process.send_signal(signal.SIGINT)
        assert ended.result()[0] == 130
        with a_browser() as browser:
            report_has_the_same_pages(browser, tmp_path)
    finally:
        up.process.kill()
        up.process.wait()
        reader.shutdown()


def width(page: Page, selector: str) -> float:
    """Return how wide the first one is on the screen, in pixels."""
    # In one go: an update may replace what was found before it is measured.
    found: float = page.evaluate("selector => document.querySelector(selector).getBoundingClientRect().width", selector)
    return found


def clicked_slowly(page: Page, selector: str) -> None:
    """Press the mouse on a link, and release it when updates of the page have come."""

    def received() -> int:
        found: int = page.evaluate("performance.getEntriesByName('update', 'mark').length")
        return found

    page.locator(selector).hover()
    page.mouse.down()
    before = received()
    until(lambda: received() > before + 1, "updates of the page have come")
    page.mouse.up()


def report_has_the_same_pages(browser: Browser, state_dir: Path) -> None:
    """The file that the run leaves shows its pages one at a time, and loads and runs nothing."""
    complaints: list[str] = []
    (file,) = state_dir.rglob("report.html")
    page = opened_file(browser, file.as_uri(), complaints)
    expect(page.get_by_role("heading", level=1)).to_have_text("quad")
    page.get_by_role("region", name="units of quad").get_by_role("link", name="v5p-0").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("v5p-0")
    assert page.evaluate("document.documentElement.scrollWidth") == 390, "a small screen scrolls down only"
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        assert serious(page) == []
    page.get_by_role("link", name="Goodput").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Goodput")
    assert not complaints, complaints


def opened_elsewhere(browser: Browser, url: str) -> list[int]:
    """Return what the browser gets with another token, and by a name that resolves to this machine."""
    page = browser.new_page()
    parts = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]+)/", url)
    assert parts is not None
    statuses = []
    for other in (f"http://127.0.0.1:{parts[1]}/{'x' * len(parts[2])}/", f"http://attacker.localhost:{parts[1]}/{parts[2]}/"):
        answer = page.goto(other)
        assert answer is not None
        statuses.append(answer.status)
    return statuses
