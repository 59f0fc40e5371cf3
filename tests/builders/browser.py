"""Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright


def chromium() -> str:
    """Return the program. A machine without it fails the test: what people look at is not left untested."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    assert found is not None, "Chromium is not installed: apt-get install chromium"
    return found


@contextmanager
def a_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # As root, as in CI, Chromium has no sandbox; it opens pages of this machine only.
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()
