"""The client against servers that do on demand what a real one does rarely."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from builders.http_server import Scripted, serving, status, stream
from diloco_operator.kube.client import ApiError, BadRequest, EventType, Gone, LogRequest, Resource, Unavailable, WatchEvent
from diloco_operator.kube.fence import Fence, NotLeading
from diloco_operator.kube.rest import ConfigError, RestClient, load_config
from diloco_operator.kube.rest import client as client_module
from diloco_operator.kube.rest import transport as transport_module
from diloco_operator.timeouts import REQUESTS

PODS = Resource("", "v1", "Pod", "pods")


def _line(kind: str, obj: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def _pod(version: int) -> dict[str, Any]:
    return {"metadata": {"name": "a", "resourceVersion": str(version)}}


async def _watched(client: RestClient, seconds: float = 5) -> list[WatchEvent]:
    return [event async for event in client.watch(PODS, "ns", resource_version="1", timeout_seconds=seconds)]


@pytest.mark.slow
async def test_events_of_a_watch_come_whole_however_they_are_cut_and_however_long(tmp_path: Path) -> None:
    long = {**_pod(3), "data": "ü" * 3_000_000}
    whole = _line("ADDED", _pod(2)) + _line("MODIFIED", long) + _line("BOOKMARK", {"metadata": {"resourceVersion": "9", "annotations": {}}})

    async def answer(request: web.Request) -> web.StreamResponse:
        return await stream(request, whole[:10], whole[10:100_000], whole[100_000:])

    async with serving(answer) as server, RestClient.connect(load_config(server.kubeconfig(tmp_path))) as client:
        found = await _watched(client)
    assert [event.type for event in found] == [EventType.ADDED, EventType.MODIFIED, EventType.BOOKMARK]
    assert found[1].object == long
    assert found[2].object == {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}}


async def test_watches_take_no_connection_from_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "CONNECTIONS", 2)
    watches = 5

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            return await stream(request, _line("ADDED", _pod(2)), then=asyncio.Event())
        return web.json_response({"metadata": {"name": "a"}}, status=201)

    async with serving(answer) as server, RestClient.connect(load_config(server.kubeconfig(tmp_path))) as client:
        open_ones = [client.watch(PODS, "ns", resource_version="1", timeout_seconds=60) for _ in range(watches)]
        for each in open_ones:
            assert (await anext(each)).type is EventType.ADDED
        for _ in range(3):
            await client.create(PODS, {"metadata": {"namespace": "ns", "name": "a"}})
        for each in open_ones:
            await each.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("code", "kind"), [(410, Gone), (500, Unavailable), (403, ApiError)])
async def test_error_in_a_watch_is_raised(tmp_path: Path, code: int, kind: type[ApiError]) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await stream(request, _line("ADDED", _pod(2)), _line("ERROR", {"kind": "Status", "code": code, "message": "why"}))

    async with serving(answer) as server, RestClient.connect(load_config(server.kubeconfig(tmp_path))) as client:
        watching = client.watch(PODS, "ns", resource_version="1", timeout_seconds=5)
        assert (await anext(watching)).type is EventType.ADDED
        with pytest.raises(kind) as error:
            await anext(watching)
    assert error.value.code == code


async def test_watch_that_is_cut_off_inside_an_event_is_no_clean_end(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await stream(request, _line("ADDED", _pod(2))[:-10])

    async with serving(answer) as server, RestClient.connect(load_config(server.kubeconfig(tmp_path))) as client:
        with pytest.raises(Unavailable, match="inside an event"):
            await _watched(client)


@pytest.mark.slow
async def test_watch_that_the_server_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "REQUESTS", replace(REQUESTS, watch_margin=0.1))

    async def answer(request: web.Request) -> web.StreamResponse:
        return await stream(request, _line("ADDED", _pod(2)), then=asyncio.Event())

    async with serving(answer) as server, RestClient.connect(load_config(server.kubeconfig(tmp_path))) as client:
        with pytest.raises(Unavailable) as error:
            await _watched(client, 1)
    assert error.value.code == 504


async def test_watch_that_is_closed_closes_its_connection(tmp_path: Path) -> None:
    closed = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await stream(request, _line("ADDED", _pod(2)), then=asyncio.Event())
        finally:
            closed.set()

    async with serving(answer) as server, RestClient.connect(load_config(server.kubeconfig(tmp_path))) as client:
        watching = cast("AsyncGenerator[WatchEvent]", client.watch(PODS, "ns", resource_version="1", timeout_seconds=300))
        await anext(watching)
        assert not closed.is_set()
        await watching.aclose()
        await closed.wait()  # the server notices


async def test_watch_asks_for_whole_seconds_and_says_what_it_wants(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await stream(request)

    async with serving(answer) as server, RestClient.connect(load_config(server.kubeconfig(tmp_path))) as client:
        watching = client.watch(PODS, resource_version="7", timeout_seconds=1.2, label_selector="a=b,c!=d", allow_bookmarks=False)
        assert [event async for event in watching] == []
    assert server.requests[0][1] == "/api/v1/pods?watch=true&resourceVersion=7&labelSelector=a%3Db%2Cc%21%3Dd&timeoutSeconds=2"


async def test_the_context_around_writes_refuses_a_write_before_it_is_sent_and_no_read(tmp_path: Path) -> None:
    fence = Fence(lambda: 1.0)
    fence.open_until(10)
    made = {"metadata": {"name": "a", "namespace": "ns"}}

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(_pod(1))

    async with serving(answer) as server, RestClient.connect(load_config(server.kubeconfig(tmp_path)), around_write=fence.write) as client:
        await client.create(PODS, made)
        fence.shut()
        with pytest.raises(NotLeading):
            await client.create(PODS, made)
        await client.get(PODS, "ns", "a")
    assert [method for method, *_ in server.requests] == ["POST", "GET"]


async def test_the_context_around_writes_ends_a_write_that_is_under_way(tmp_path: Path) -> None:
    fence = Fence(lambda: 1.0)
    fence.open_until(10)

    async def answer(request: web.Request) -> web.StreamResponse:
        fence.shut()
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(answer) as server, RestClient.connect(load_config(server.kubeconfig(tmp_path)), around_write=fence.write) as client:
        with pytest.raises(NotLeading, match="during the write"):
            await client.create(PODS, {"metadata": {"name": "a", "namespace": "ns"}})


def test_the_kernel_gives_up_what_does_not_arrive_in_time() -> None:
    address = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 1))
    with transport_module._socket(address, 5.0) as made:
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000  # milliseconds


async def test_write_is_repeated_when_a_busy_server_asks_for_a_later_retry(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if len(server.requests) < 3:
            busy = status(429, "TooManyRequests")
            busy.headers["Retry-After"] = "0"
            return busy
        return web.json_response({"metadata": {"name": "a"}})

    seen: list[tuple[str, str]] = []
    async with serving(answer) as server:
        config = load_config(server.kubeconfig(tmp_path))
        async with RestClient.connect(config, on_request=lambda method, code, host: seen.append((method, code))) as client:
            made = await client.create(PODS, {"metadata": {"name": "a", "namespace": "ns"}})
    assert made == {"metadata": {"name": "a"}}
    assert seen == [("POST", "429"), ("POST", "429"), ("POST", "200")]


@pytest.mark.parametrize("header", ["3600", None])
async def test_waiting_for_a_busy_server_has_an_end(tmp_path: Path, header: str | None) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        busy = status(429, "TooManyRequests")
        if header:
            busy.headers["Retry-After"] = header
        return busy

    async with serving(answer) as server, RestClient.connect(load_config(server.kubeconfig(tmp_path))) as client:
        with pytest.raises(ApiError) as error:
            await client.list(PODS)
    assert error.value.code == 429
    assert len(server.requests) == 1


async def test_eviction_that_a_budget_forbids_fails_at_once(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        refused = status(429, "TooManyRequests", "violates the pod's disruption budget")
        refused.headers["Retry-After"] = "0"
        return refused

    async with serving(answer) as server, RestClient.connect(load_config(server.kubeconfig(tmp_path))) as client:
        with pytest.raises(ApiError, match="disruption budget"):
            await client.evict("ns", "a", uid="u")
    assert len(server.requests) == 1
    assert json.loads(server.requests[0][3])["deleteOptions"]["preconditions"] == {"uid": "u"}


async def test_redirect_is_not_followed(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "/elsewhere"})

    async with serving(answer) as server, RestClient.connect(load_config(server.kubeconfig(tmp_path, {"token": "secret"}))) as client:
        with pytest.raises(ApiError) as error:
            await client.create(PODS, {"metadata": {"name": "a", "namespace": "ns"}})
    assert error.value.code == 302
    assert len(server.requests) == 1


async def test_server_that_is_not_there_is_unavailable_and_counted(tmp_path: Path) -> None:
    async with serving(lambda request: stream(request)) as server:
        path = server.kubeconfig(tmp_path)
    seen: list[tuple[str, str]] = []
    async with RestClient.connect(load_config(path), on_request=lambda method, code, host: seen.append((method, code))) as client:
        with pytest.raises(Unavailable):
            await client.get(PODS, "ns", "a")
    assert seen == [("GET", "<error>")]


async def test_object_that_is_not_json_fails_before_it_is_sent(tmp_path: Path) -> None:
    async with serving(lambda request: stream(request)) as server:
        async with RestClient.connect(load_config(server.kubeconfig(tmp_path))) as client:
            for wrong in (object(), float("nan")):
                with pytest.raises(BadRequest, match="not JSON"):
                    await client.create(PODS, {"metadata": {"name": "a", "namespace": "ns"}, "spec": wrong})
        assert server.requests == []


async def test_answer_that_is_no_json_is_not_taken_for_an_object(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>please log in</html>")

    async with serving(answer) as server, RestClient.connect(load_config(server.kubeconfig(tmp_path))) as client:
        with pytest.raises(Unavailable, match="log in"):
            await client.get(PODS, "ns", "a")


async def test_logs_come_in_pieces_and_say_what_was_asked(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        return await stream(request, b"one\n", then=go_on)

    async with serving(answer) as server, RestClient.connect(load_config(server.kubeconfig(tmp_path))) as client:
        logs = client.pod_logs("ns", "a", LogRequest("learner", follow=True, tail_lines=0))
        assert await anext(logs) == b"one\n"
        go_on.set()
        assert [piece async for piece in logs] == []
    assert server.requests[0][1] == "/api/v1/namespaces/ns/pods/a/log?container=learner&follow=true&tailLines=0"


@pytest.mark.slow
async def test_sixty_four_writes_and_watches_run_side_by_side(tmp_path: Path) -> None:
    writes, watches = 64, 16
    everybody = asyncio.Event()
    arrived = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal arrived
        arrived += 1
        if arrived == writes + watches:
            everybody.set()
        await everybody.wait()  # no request is answered before all have arrived
        return await stream(request) if request.query.get("watch") else web.json_response({"metadata": {}})

    async with serving(answer) as server, RestClient.connect(load_config(server.kubeconfig(tmp_path))) as client:
        watching = [_watched(client) for _ in range(watches)]
        writing = [client.create(PODS, {"metadata": {"name": f"p{n}", "namespace": "ns"}}) for n in range(writes)]
        await asyncio.gather(*watching, *writing)
    assert len(server.requests) == writes + watches


def _authorizations(server: Scripted) -> list[str]:
    return [headers.get("Authorization", "") for _, _, headers, _ in server.requests]


@pytest.mark.slow
async def test_rotated_token_file_is_read_again_when_the_old_token_is_rejected(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.headers["Authorization"] == "Bearer old":
            token.write_text("new\n")
            return status(401, "Unauthorized")
        return web.json_response({"metadata": {}})

    async with serving(answer) as server:
        config = load_config(server.kubeconfig(tmp_path, {"tokenFile": "token"}))
        async with RestClient.connect(config) as client:
            await client.create(PODS, {"metadata": {"name": "a", "namespace": "ns"}})
    assert _authorizations(server) == ["Bearer old", "Bearer new"]


async def test_rejection_of_the_only_credentials_is_reported(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return status(401, "Unauthorized")

    async with serving(answer) as server, RestClient.connect(load_config(server.kubeconfig(tmp_path, {"token": "t"}))) as client:
        with pytest.raises(ApiError) as error:
            await client.get(PODS, "ns", "a")
    assert error.value.code == 401
    assert len(server.requests) == 1


def _plugin(folder: Path, program: str) -> dict[str, Any]:
    """A user with an exec plugin: a Python program that prints the status as JSON."""
    path = folder / "plugin.py"
    path.write_text(program)
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "args": [str(path)], "installHint": "install it"}
    return {"exec": command}


_COUNTING = """
import json, pathlib
count = pathlib.Path(__file__).with_name("count")
number = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(number))
status = {"token": f"t{number}", "expirationTimestamp": "2999-01-01T00:00:00Z"}
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))
"""


@pytest.mark.slow
async def test_exec_plugin_runs_once_and_again_when_its_token_is_rejected(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return (
            status(401, "Unauthorized")
            if request.headers["Authorization"] == "Bearer t1" and len(server.requests) > 2
            else web.json_response({})
        )

    async with serving(answer) as server:
        config = load_config(server.kubeconfig(tmp_path, _plugin(tmp_path, _COUNTING)))
        async with RestClient.connect(config) as client:
            for _ in range(4):
                await client.get(PODS, "ns", "a")
    assert _authorizations(server) == ["Bearer t1", "Bearer t1", "Bearer t1", "Bearer t2", "Bearer t2"]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import sys; sys.exit('log in first')", "log in first"),
        ("print('no json')", "failed to decode"),
        ('print(\'{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {}}\')', "missing token or"),
    ],
)
async def test_exec_plugin_that_fails_is_an_error_not_an_anonymous_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, program: str, words: str
) -> None:
    async with serving(lambda request: stream(request)) as server:
        config = load_config(server.kubeconfig(tmp_path, _plugin(tmp_path, program)))
        with pytest.raises(ConfigError, match="gave no credentials"):
            async with RestClient.connect(config):
                pass
        assert words in caplog.text
        assert server.requests == []


async def test_exec_plugin_that_is_not_installed_is_named_with_its_hint(tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin", "installHint": "install it from there"}}
    async with serving(lambda request: stream(request)) as server:
        with pytest.raises(ConfigError, match=r"no-such-plugin.*install it from there"):
            async with RestClient.connect(load_config(server.kubeconfig(tmp_path, user))):
                pass


@pytest.mark.slow
async def test_proxy_of_the_kubeconfig_is_used(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"through": "proxy"})

    async with serving(answer) as proxy:
        path = proxy.kubeconfig(tmp_path)
        content = json.loads(path.read_text())
        content["clusters"][0]["cluster"] = {"server": "http://api.example", "proxy-url": proxy.url}
        path.write_text(json.dumps(content))
        async with RestClient.connect(load_config(path)) as client:
            assert await client.server_version() == {"through": "proxy"}
    assert proxy.requests[0][2]["Host"] == "api.example"
