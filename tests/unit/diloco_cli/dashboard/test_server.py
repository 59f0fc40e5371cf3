"""The dashboard as it is served: who gets an answer, and how open pages are kept up to date."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import ClientResponse
from builders.cluster_scenes import NOW, Limited, begin, conditions, set_status, unit
from builders.dashboards import Browser, a_dashboard
from builders.dra import a_dra_node, offer
from builders.fake_cluster import FakeCluster
from builders.pod_logs import Logs
from builders.virtual_time import run_virtual, until
from diloco_cli.cluster import CommandError
from diloco_cli.dashboard import installed
from diloco_cli.dashboard.app import Pages
from diloco_cli.dashboard.server import PortTaken, serving
from diloco_cli.dashboard.source import Source
from diloco_cli.dashboard.updates import MOST_STREAMS, TooManyStreams, Updates
from diloco_local.memory import MemoryApi
from diloco_operator.api.names import DILOCO_JOBS, NODES
from diloco_operator.kube.client import Unavailable, WatchEvent
from diloco_operator.kube.timestamps import format_timestamp

pytestmark = pytest.mark.slow
JOB = "jobs/team/bytes-lm"


@pytest.fixture
async def cluster() -> FakeCluster:
    """With one job that trains."""
    cluster = FakeCluster(MemoryApi())
    await begin(cluster, unit(), Training="True")
    return cluster


@pytest.fixture
async def browser(cluster: FakeCluster) -> AsyncIterator[Browser]:
    async with a_dashboard(cluster.api) as browser:
        yield browser


async def next_sections(stream: ClientResponse) -> dict[str, Any]:
    """Wait for the next update of a page, and return its sections."""
    async for line in stream.content:
        if line.startswith(b"data: "):
            return dict(json.loads(line.removeprefix(b"data: ")))
    raise AssertionError("the stream ended")


async def test_only_who_has_the_token_and_asks_by_the_own_address_gets_an_answer(browser: Browser) -> None:
    parts = urlsplit(browser.url)
    port = parts.port
    wrong = [
        await browser.get(f"http://127.0.0.1:{port}/"),
        await browser.get(f"http://127.0.0.1:{port}/wrong/"),
        await browser.get(f"http://127.0.0.1:{port}/{parts.path[1:-2]}/"),
        await browser.get(f"http://127.0.0.1:{port}/static/dashboard.js"),
        await browser.get(Host=f"attacker.example:{port}"),
        await browser.get(Host="127.0.0.1"),
        await browser.get(Origin="http://attacker.example"),
        await browser.get(Origin="null"),
        await browser.get(JOB, Origin=f"https://127.0.0.1:{port}", Accept="text/event-stream"),
    ]
    assert [answer.status for answer in wrong] == [403] * len(wrong)
    assert not [answer for answer in wrong if "bytes-lm" in await answer.text()]
    right = [
        await browser.get(),
        await browser.get(JOB),
        await browser.get(Origin=f"http://127.0.0.1:{port}"),
        await browser.get(Host=f"localhost:{port}"),
        await browser.get("static/dashboard.js"),
        await browser.get("static/dashboard.css"),
    ]
    assert [answer.status for answer in right] == [200] * len(right)


async def test_every_answer_forbids_all_but_its_own_files(browser: Browser) -> None:
    for answer in (await browser.get(), await browser.get("nowhere"), await browser.get(Host="attacker.example")):
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"


async def test_what_is_not_there_is_said_and_what_changes_something_is_refused(browser: Browser) -> None:
    assert (await browser.get("jobs/team/other")).status == 404
    assert (await browser.get("jobs/team")).status == 404
    assert (await browser.session.post(browser.url)).status == 405
    assert (await browser.session.delete(f"{browser.url}{JOB}")).status == 405


async def test_an_open_page_gets_the_sections_that_changed(cluster: FakeCluster, browser: Browser) -> None:
    stream = await browser.get(JOB, Accept="text/event-stream")
    assert stream.content_type == "text/event-stream"
    first = await next_sections(stream)
    assert "v5p-0" in first["units"]["html"]
    await set_status(cluster, unit(), unit("v5p-1", "Joining"), Training="True")
    second: dict[str, Any] = {}
    while "units" not in second:
        second = await next_sections(stream)
    assert "v5p-1" in second["units"]["html"]
    assert second["units"]["version"] != first["units"]["version"]
    assert "conditions" not in second


async def test_the_timeline_of_an_open_page_has_a_row_for_each_unit_elsewhere_by_its_state_in_status(
    cluster: FakeCluster, browser: Browser
) -> None:
    stream = await browser.get(JOB, Accept="text/event-stream")
    assert "far-0" not in (await next_sections(stream))["timeline"]["html"]
    far = {"name": "far-0", "state": "Contributing", "since": "2026-11-20T21:00:00Z", "attempt": 1, "tokens": 64}
    said = {"conditions": conditions(Training="True"), "units": [unit()], "parts": [{"name": "tokyo", "units": [far]}]}
    await cluster.write_status(DILOCO_JOBS, "bytes-lm", said, namespace="team")
    sections: dict[str, Any] = {}
    while "far-0" not in sections.get("timeline", {}).get("html", ""):
        sections |= await next_sections(stream)
    assert "far-0" in sections["elsewhere"]["html"]


async def test_a_page_of_a_namespace_has_no_job_of_another(cluster: FakeCluster) -> None:
    async with a_dashboard(cluster.api, "elsewhere") as browser:
        assert "There are no jobs." in await (await browser.get()).text()
        assert (await browser.get(JOB)).status == 404


async def test_a_user_who_may_not_list_nodes_sees_the_jobs_and_is_told(cluster: FakeCluster) -> None:
    async with a_dashboard(Limited(cluster.api, NODES)) as browser:
        text = await (await browser.get()).text()
        assert "bytes-lm" in text
        assert "The hardware is not shown: nodes is forbidden" in text


async def test_gpus_that_only_dra_offers_are_hardware(cluster: FakeCluster) -> None:
    await cluster.add([a_dra_node("dra-0"), a_dra_node("dra-1")])
    await offer(cluster, "dra-0", "dra-1")
    async with a_dashboard(cluster.api) as browser:
        assert "nvidia-h100-80gb" in await (await browser.get()).text()


async def test_a_deleted_job_leaves_the_pages(cluster: FakeCluster, browser: Browser) -> None:
    stream = await browser.get(Accept="text/event-stream")
    assert "bytes-lm" in (await next_sections(stream))["jobs"]["html"]
    await cluster.api.delete(DILOCO_JOBS, "team", "bytes-lm")
    sections: dict[str, Any] = {}
    while "jobs" not in sections:
        sections = await next_sections(stream)
    assert "There are no jobs." in sections["jobs"]["html"]


async def test_an_open_page_of_what_is_deleted_says_so(cluster: FakeCluster, browser: Browser) -> None:
    stream = await browser.get(JOB, Accept="text/event-stream")
    assert (await next_sections(stream))["notice"]["html"] == ""
    await cluster.api.delete(DILOCO_JOBS, "team", "bytes-lm")
    sections: dict[str, Any] = {}
    while not sections.get("notice", {}).get("html"):
        sections = await next_sections(stream)
    assert "This is no longer there" in sections["notice"]["html"]


class Away(Limited):
    """A client whose API server does not answer while it is away."""

    away = False

    async def watch(self, *what: Any, **how: Any) -> AsyncIterator[WatchEvent]:
        async for event in self._api.watch(*what, **how):
            if self.away:
                break
            yield event
        if self.away:
            raise Unavailable(503, "ServiceUnavailable", "no connection")


def test_pages_say_when_the_api_server_does_not_answer_any_more() -> None:
    async def run() -> None:
        api = MemoryApi()
        await begin(cluster := FakeCluster(api), unit(), Training="True")
        client, loop = Away(api), asyncio.get_running_loop()
        source = Source(client, Logs(), "", lambda: NOW + loop.time(), loop.time)
        pages = Pages(source, "")
        async with source.following():
            await asyncio.sleep(3600)
            assert pages.sections("/jobs/team/bytes-lm")["notice"] == "", "nothing changes, and it answers"
            client.away = True
            await set_status(cluster, unit(), unit("v5p-1"), Training="True")  # which ends the watch
            away = loop.time()
            await asyncio.sleep(600)
            for path in ("/", "/jobs/team/bytes-lm", "/jobs/team/bytes-lm/units/v5p-0"):
                assert f"has not answered since {format_timestamp(NOW + away)}" in pages.sections(path)["notice"]
            client.away = False
            await until(lambda: pages.sections("/")["notice"] == "")

    run_virtual(run())


async def test_a_port_that_is_taken_is_said(cluster: FakeCluster) -> None:
    async with serving(cluster.api, Logs(), "") as served:
        port = urlsplit(served.url).port
        assert port is not None
        with pytest.raises(PortTaken, match=f"port {port} of 127.0.0.1 cannot be had: .*; choose another with --port"):
            await AsyncExitStack().enter_async_context(serving(cluster.api, Logs(), "", port))


async def test_a_slow_browser_gets_the_newest_state_and_costs_the_memory_of_one_page() -> None:
    content = {"figures": "0"}
    updates = Updates(lambda _path: content)
    stream = updates.stream("/")
    assert await anext(stream) == "retry: 2000\n\n"
    assert '"html":"0"' in await anext(stream)
    for number in range(1, 1000):  # nobody reads meanwhile
        content["figures"] = str(number)
        updates.offer_now()
    assert '"html":"999"' in await anext(stream)
    updates.close()
    assert [rest async for rest in stream] == []


async def test_a_page_that_cannot_be_made_stays_as_it_was_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    content = {"/jobs/a/broken": 0, "/jobs/b/good": 0}

    def render(path: str) -> dict[str, str]:
        if path == "/jobs/a/broken" and content[path]:
            raise ValueError("no page follows from this status")
        return {"figures": str(content[path])}

    updates = Updates(render)
    broken, good = streams = [updates.stream(path) for path in content]
    for stream in streams:
        await anext(stream)
        assert '"html":"0"' in await anext(stream)
    content.update({"/jobs/a/broken": 1, "/jobs/b/good": 1})
    updates.offer_now()
    assert '"html":"1"' in await anext(good)
    assert [record.message for record in caplog.records] == ["page /jobs/a/broken could not be brought up to date"]
    updates.close()
    assert [rest async for rest in broken] == []


async def test_more_open_pages_than_there_may_be_are_refused() -> None:
    updates = Updates(lambda _path: {})
    streams = [updates.stream("/") for _ in range(MOST_STREAMS + 1)]
    for stream in streams[:-1]:
        await anext(stream)
    with pytest.raises(TooManyStreams):
        await anext(streams[-1])
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]


def test_a_missing_web_server_is_said_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "find_spec", lambda name: None if name == "uvicorn" else object())
    with pytest.raises(CommandError, match="needs uvicorn: install diloco-operator with its extra `dashboard`"):
        installed.check_installed()
