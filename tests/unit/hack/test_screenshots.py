"""The pictures in the documents are those that `make screenshots` takes, and the fleet that they show is one that the API accepts."""

from __future__ import annotations

import re

import pytest
from builders.dashboards import a_dashboard
from builders.shown_fleet import a_shown_fleet, shown_logs
from screenshots import IMAGES, ROOT, SHOTS

PAGE = ROOT / "docs" / "guide" / "dashboard.md"


def test_every_picture_is_shown_on_the_page_and_all_but_that_of_a_run_are_taken_by_the_command() -> None:
    taken = {"dashboard.png", *(f"{shot.name}.png" for shot in SHOTS)}
    assert {file.name for file in IMAGES.glob("*.png")} == taken
    assert set(re.findall(r"\(\.\./images/([\w-]+\.png)\)", PAGE.read_text())) == taken


@pytest.mark.slow
async def test_the_pages_have_what_the_text_beside_the_pictures_says() -> None:
    fleet, unit, *_ = SHOTS
    async with a_dashboard(await a_shown_fleet(), logs=shown_logs()) as browser:
        shown = ""
        while "ClusterQueue research" not in shown or "in other use" not in shown:
            shown = await (await browser.get(fleet.path)).text()
        assert "ResourceQuota pretraining/accelerators" in shown
        while "Log of host 0" not in shown:
            shown = await (await browser.get(unit.path)).text()
        assert "The others wait for host 1 (ranks 8 to 15) to run." in shown
        assert "waits for ranks 8 to 15" in shown
