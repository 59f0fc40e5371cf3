"""The endpoints over real sockets: who may read metrics, and what strangers can hold."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import pytest
from diloco_operator.api.names import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from diloco_operator.kube.client import Obj, Resource, Unavailable
from diloco_operator.operator.endpoint_tls import self_signed
from diloco_operator.operator.endpoints import Address, health_app, metrics_app, serving
from diloco_operator.operator.metrics_access import MOST_ANSWERS, Access, MetricsAccess
from diloco_operator.operator.metrics_page import MetricsPage
from diloco_operator.timeouts import ENDPOINTS, EndpointTimeouts
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

CONNECTIONS = 4
PROMPT = EndpointTimeouts(request=0.05, connection=0.1)
"""Time-outs that end a test soon. What a test expects does not depend on their length."""
PATIENT = EndpointTimeouts(request=300.0, connection=600.0)
"""Time-outs that no test reaches."""


class Reviewer:
    """An API server that knows two ServiceAccounts: the token of "reader" may get /metrics, that of "other" may not."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.down = False

    async def create(self, resource: Resource, obj: Obj) -> Obj:
        if self.down:
            raise Unavailable(503, "ServiceUnavailable", "down")
        self.asked.append(resource.kind)
        spec: dict[str, Any] = obj["spec"]
        if resource == TOKEN_REVIEWS:
            known = spec["token"] in ("reader", "other")
            user = {"username": f"system:serviceaccount:monitoring:{spec['token']}", "groups": ["system:authenticated"]}
            return {"status": {"authenticated": True, "user": user} if known else {"authenticated": False}}
        assert resource == SUBJECT_ACCESS_REVIEWS
        assert spec["groups"] == ["system:authenticated"]
        assert spec["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"}
        return {"status": {"allowed": spec["user"].endswith(":reader")}}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Counting(Collector):
    """Counts its collections and notes their threads. `go`: they wait for it."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.began = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def describe(self) -> list[GaugeMetricFamily]:
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        self.threads.append(threading.get_ident())
        self.began.set()
        self.go.wait()
        yield GaugeMetricFamily("collections", "", value=len(self.threads))


def page(counting: Counting, clock: Callable[[], float]) -> MetricsPage:
    registry = CollectorRegistry()
    registry.register(counting)
    return MetricsPage(registry, look=lambda: None, now=clock, offload=asyncio.to_thread)


@contextlib.asynccontextmanager
async def served(
    caplog: pytest.LogCaptureFixture,
    app: aiohttp.web.Application,
    timeouts: EndpointTimeouts,
    tls: ssl.SSLContext | None = None,
    *,
    connections: int = CONNECTIONS,
    host: str = "127.0.0.1",
) -> AsyncIterator[int]:
    """The port of the endpoint."""
    with caplog.at_level(logging.INFO):
        async with serving(app, Address(host, 0), "a test", connections=connections, timeouts=timeouts, tls=tls):
            found = re.search(r"serving a test at \S+:(\d+)", caplog.text)
            assert found is not None
            yield int(found[1])


async def get(port: int, path: str, token: str = "", *, scheme: str = "http") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession() as session, session.get(f"{scheme}://127.0.0.1:{port}{path}", headers=headers, ssl=False) as answer:
        return answer.status, await answer.text()


# --- address families -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("host", ["", "::"])
async def test_an_endpoint_on_every_address_answers_kubelets_of_both_families(caplog: pytest.LogCaptureFixture, host: str) -> None:
    async with served(caplog, health_app(list), PATIENT, host=host) as port, aiohttp.ClientSession() as session:
        for client in ("127.0.0.1", "[::1]"):
            async with session.get(f"http://{client}:{port}/healthz") as answer:
                assert answer.status == 200


async def test_an_endpoint_on_every_address_needs_no_ipv6(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)  # a kernel without it
    async with served(caplog, health_app(list), PATIENT, host="") as port:
        assert (await get(port, "/healthz"))[0] == 200


# --- who may read -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("token", "status"), [("", 401), ("stranger", 401), ("other", 403), ("reader", 200)])
async def test_only_a_token_that_may_get_metrics_reads_them(caplog: pytest.LogCaptureFixture, token: str, status: int) -> None:
    counting = Counting()
    app = metrics_app(page(counting, Clock()), MetricsAccess(Reviewer(), Clock()))
    async with served(caplog, app, PATIENT, self_signed()) as port:
        found, text = await get(port, "/metrics", token, scheme="https")
    assert found == status
    assert ("collections 1.0" in text) == (status == 200)
    assert len(counting.threads) == (1 if status == 200 else 0)  # a refused request costs no encoding


async def test_a_token_is_not_read_over_plain_http(caplog: pytest.LogCaptureFixture) -> None:
    app = metrics_app(page(Counting(), Clock()), MetricsAccess(Reviewer(), Clock()))
    async with served(caplog, app, PATIENT, self_signed()) as port:
        with pytest.raises(aiohttp.ClientError):
            await get(port, "/metrics", "reader")


async def test_an_answer_of_the_api_server_counts_for_a_while() -> None:
    reviewer, clock = Reviewer(), Clock()
    access = MetricsAccess(reviewer, clock)
    assert [await access.check("Bearer reader") for _ in range(3)] == [Access.GRANTED] * 3
    assert reviewer.asked == ["TokenReview", "SubjectAccessReview"]
    clock.now += ENDPOINTS.access
    assert await access.check("Bearer reader") is Access.GRANTED
    assert reviewer.asked == ["TokenReview", "SubjectAccessReview"] * 2


async def test_many_tokens_take_a_bounded_memory() -> None:
    access = MetricsAccess(Reviewer(), Clock())
    for number in range(MOST_ANSWERS + 10):
        await access.check(f"Bearer guess-{number}")
    assert len(access._answers) == MOST_ANSWERS


async def test_a_silent_api_server_admits_no_one_and_is_asked_again() -> None:
    reviewer = Reviewer()
    access = MetricsAccess(reviewer, Clock())
    reviewer.down = True
    assert await access.check("Bearer reader") is Access.UNKNOWN
    reviewer.down = False
    assert await access.check("Bearer reader") is Access.GRANTED


# --- one encoding for all ---------------------------------------------------------------------------------------------
async def test_scrapes_at_once_share_one_encoding_off_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    counting, clock = Counting(), Clock()
    counting.go.clear()
    async with served(caplog, metrics_app(page(counting, clock)), ENDPOINTS, connections=20) as port:
        scrapes = [asyncio.create_task(get(port, "/metrics")) for _ in range(16)]
        await asyncio.to_thread(counting.began.wait)  # the loop runs while the encoding waits
        counting.go.set()
        assert {text.splitlines()[-1] for _, text in await asyncio.gather(*scrapes)} == {"collections 1.0"}
        assert counting.threads[0] != threading.get_ident()
        clock.now += 0.9 * ENDPOINTS.page
        await get(port, "/metrics")
        assert len(counting.threads) == 1
        clock.now += 0.1 * ENDPOINTS.page
        await get(port, "/metrics")
        assert len(counting.threads) == 2


# --- what strangers can hold ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_a_connection_that_does_not_finish_its_request_is_closed(caplog: pytest.LogCaptureFixture, sent: bytes) -> None:
    async with served(caplog, health_app(list), PROMPT) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


async def test_a_tls_handshake_that_does_not_come_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async with served(caplog, health_app(list), PROMPT, self_signed()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


async def test_headers_without_end_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with served(caplog, health_app(list), PATIENT) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nX-Long: " + b"x" * 20000 + b"\r\n\r\n")
        assert b" 400 " in await reader.readline()
        writer.close()


async def test_half_open_connections_keep_no_probe_out(caplog: pytest.LogCaptureFixture) -> None:
    async with served(caplog, health_app(list), PATIENT) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10 * CONNECTIONS)]
        assert await get(port, "/healthz") == (200, "ok\n")
        ends = [asyncio.create_task(reader.read()) for reader, _ in held]
        # 4 connections at most: 40 were opened and the probe took a place, so that at least 37 were closed; these end.
        for end in itertools.islice(asyncio.as_completed(ends), 37):
            with contextlib.suppress(ConnectionError):
                assert await end == b""
        for end in ends:
            end.cancel()
        for _, writer in held:
            writer.close()


async def test_requests_that_wait_for_their_answer_take_all_places_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    counting = Counting()
    counting.go.clear()
    async with served(caplog, metrics_app(page(counting, Clock())), PATIENT) as port:
        scrapes = [asyncio.create_task(get(port, "/metrics")) for _ in range(CONNECTIONS + 3)]
        try:
            done, pending = set[asyncio.Task[tuple[int, str]]](), set(scrapes)
            while len(done) < 3:
                ended, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                done |= ended
        finally:
            counting.go.set()
        assert all(isinstance(each.exception(), aiohttp.ClientError) for each in done), done
        assert [status for status, _ in await asyncio.gather(*pending)] == [200] * CONNECTIONS


async def test_a_connection_carries_one_request(caplog: pytest.LogCaptureFixture) -> None:
    async with served(caplog, health_app(list), PATIENT) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        with contextlib.suppress(ConnectionError):
            assert (await reader.read()).count(b"HTTP/1.1 200") == 1
        writer.close()
