"""Logs of simulated nodes' pods, asked for as an API server does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from simulated_nodes.exec_endpoint import ExecEndpoint
from simulated_nodes.log_server import LogServer


async def get(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"https://127.0.0.1:{port}{path}", ssl=False) as answer:
        return answer.status, await answer.text()


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    first, second, other = (tmp_path / name for name in ("main-0.log", "main-1.log", "other-0.log"))
    first.write_text("of a pod of this name before\nfirst run\n")
    second.write_text("second run\nmore\n")
    other.write_text("of a pod of this name before\nanother container\n")
    known = {("default", "pod", "main"): [(first, 29), (second, 0)], ("default", "pod", "other"): [(other, 29)]}
    async with LogServer(lambda *container: (known.get(container, []), False), ExecEndpoint(lambda *_: None).answer) as server:
        yield await server.listen("127.0.0.1")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/containerLogs/default/pod/main", (200, "second run\nmore\n")),
        ("/containerLogs/default/pod/main?previous=true", (200, "first run\n")),
        ("/containerLogs/default/pod/main?tailLines=1&follow=true", (200, "more\n")),
        ("/containerLogs/default/pod/main?limitBytes=6", (200, "second")),
        ("/containerLogs/default/pod/other", (200, "another container\n")),
        ("/containerLogs/default/pod/other?tailLines=5", (200, "another container\n")),
    ],
)
async def test_a_container_shows_its_newest_run_or_the_one_before(port: int, path: str, expected: tuple[int, str]) -> None:
    assert await get(port, path) == expected


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/containerLogs/default/pod/absent", 404),
        ("/containerLogs/default/pod/other?previous=true", 400),
        ("/containerLogs/other/pod/main", 404),
        ("/containerLogs/default/pod/main?timestamps=true", 400),
        ("/run/default/pod/main", 404),
    ],
)
async def test_what_there_is_not_is_refused(port: int, path: str, status: int) -> None:
    code, _ = await get(port, path)
    assert code == status
