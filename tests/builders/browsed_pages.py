"""Pages of the dashboard in a browser, served or as a file."""

from __future__ import annotations

import re

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

PATIENCE = 180_000.0
"""Milliseconds; bounds a failure only."""


def opened(browser: Browser, url: str, complaints: list[str]) -> Page:
    """Open a page of a dashboard in a context of its own, and note what the browser complains of: refused resources, exceptions."""
    page = browser.new_page(color_scheme="dark", viewport={"width": 390, "height": 800})
    page.set_default_timeout(PATIENCE)
    page.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(url)
    expect(page.locator("#connection")).to_have_text("live", timeout=PATIENCE)
    return page


def opened_file(browser: Browser, uri: str, complaints: list[str]) -> Page:
    """Open a file that was written of the pages, and note what the browser complains of, and all that it asks the network for."""
    page = browser.new_page(color_scheme="dark", viewport={"width": 390, "height": 800})
    page.on("console", lambda message: complaints.append(message.text))
    page.on("request", lambda request: complaints.append(request.url) if not request.url.startswith("file:") else None)
    page.goto(uri)
    return page


def row(page: Page, section: str, name: str) -> list[str]:
    """Return the cells of the row of this name."""
    found = page.locator(f"#{section} tbody tr").filter(has=page.locator("td:first-child", has_text=re.compile(f"^{re.escape(name)}$")))
    return found.locator("td").all_inner_texts()


def serious(page: Page) -> list[str]:
    """Return what keeps people from using the page, by axe-core."""
    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {[node['html'] for node in each['nodes']]}" for each in found if each["impact"] in ("serious", "critical")]
