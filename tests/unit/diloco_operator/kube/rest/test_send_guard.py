"""The last checks before a request goes out: after its waiting in the process, and at the socket."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from diloco_operator.api.names import CONFIG_MAPS
from diloco_operator.kube.client import Unavailable
from diloco_operator.kube.fence import Fence, FencedClient, NotLeading
from diloco_operator.kube.rest import RestClient, load_config
from diloco_operator.kube.rest.send_guard import SendGuard

BODY = json.dumps({"metadata": {"name": "a", "namespace": "ns", "resourceVersion": "1"}}).encode()
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


class Server:
    """Records the first line of each request."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        """Requests of which the first byte arrived."""
        self.carried_out: list[str] = []
        """Requests that arrived as a whole."""
        self.connections = 0
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                self.heard.append(lines[0].partition("?")[0].partition(" HTTP")[0])
                lengths = [int(line.partition(":")[2]) for line in lines if line.lower().startswith("content-length:")]
                if lengths:
                    await reader.readexactly(lengths[0])
                self.carried_out.append(self.heard[-1])
                writer.write(ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def kubeconfig(self, folder: Path) -> Path:
        path = folder / "kubeconfig"
        content = {
            "clusters": [{"name": "a", "cluster": {"server": self.url}}],
            "users": [{"name": "a", "user": {"token": "t"}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "current-context": "a",
        }
        path.write_text(json.dumps(content))
        return path


async def test_a_write_that_waited_until_the_lease_expired_is_not_sent(tmp_path: Path) -> None:
    """The fence allowed it, and then the process was suspended while the request waited for its connection."""
    clock = 0.0
    fence = Fence(lambda: clock)
    fence.open_until(10)
    server = Server()

    def before_send(method: str) -> None:
        nonlocal clock
        clock = 60.0  # this late
        if method != "GET":
            fence.check()

    async with server.serving():
        config = load_config(server.kubeconfig(tmp_path))
        async with RestClient.connect(config, before_send=before_send) as client:
            fence.check()
            with pytest.raises(NotLeading):
                await client.create(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": "ns"}})
            await client.get(CONFIG_MAPS, "ns", "a")
    assert server.heard == ["GET /api/v1/namespaces/ns/configmaps/a"]


async def test_a_write_that_was_stopped_between_its_last_check_and_the_socket_is_not_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The check of the request passed. A tenth of a millisecond later the process is suspended, while it writes the headers."""
    times = iter([1.0, 1.0, 60.0])  # for the fence around the write, the request and the socket
    fence = Fence(lambda: next(times))
    fence.open_until(10)
    server = Server()

    async with server.serving():
        config = load_config(server.kubeconfig(tmp_path))
        async with RestClient.connect(config, before_send=lambda method: fence.check()) as client:
            fence.check()
            with pytest.raises(Unavailable, match="this replica does not hold the leader's lease"):
                await client.create(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": "ns"}})
    assert server.heard == []
    assert fence.refused == 1
    assert caplog.messages == []  # a stopped write is no defect


@pytest.mark.slow
async def test_the_rest_of_a_long_write_is_not_sent_after_the_lease_expired(tmp_path: Path) -> None:
    """More bytes than a socket takes at once: the first part is sent in time, and the process is suspended before the next."""
    fence = Fence(lambda: 1.0 if len(asked) < 3 else 60.0)
    fence.open_until(10)
    asked: list[str] = []
    server = Server()

    def before_send(method: str) -> None:
        asked.append(method)
        fence.check()

    async with server.serving():
        config = load_config(server.kubeconfig(tmp_path))
        async with RestClient.connect(config, before_send=before_send) as client:
            with pytest.raises(Unavailable, match="this replica does not hold the leader's lease"):
                await client.create(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": "ns"}, "data": {"x": "x" * 50_000_000}})
    assert server.heard == ["POST /api/v1/namespaces/ns/configmaps"]
    assert server.carried_out == []


async def test_a_connection_that_a_write_used_still_reads_after_the_lease_expired(tmp_path: Path) -> None:
    fence = Fence(lambda: 1.0)
    fence.open_until(10)
    server = Server()

    def before_send(method: str) -> None:
        if method != "GET":
            fence.check()

    async with server.serving():
        config = load_config(server.kubeconfig(tmp_path))
        async with RestClient.connect(config, before_send=before_send) as client:
            await FencedClient(client, fence).create(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": "ns"}})
            fence.shut()
            await client.get(CONFIG_MAPS, "ns", "a")
    assert server.heard == server.carried_out == ["POST /api/v1/namespaces/ns/configmaps", "GET /api/v1/namespaces/ns/configmaps/a"]
    assert server.connections == 1


async def test_what_may_be_sent_is_sent(tmp_path: Path) -> None:
    server = Server()
    asked: list[str] = []
    async with server.serving():
        config = load_config(server.kubeconfig(tmp_path))
        async with RestClient.connect(config, before_send=asked.append, delivery_timeout=5.0) as client:
            await client.create(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": "ns"}})
            await client.get(CONFIG_MAPS, "ns", "a")
    assert server.heard == ["POST /api/v1/namespaces/ns/configmaps", "GET /api/v1/namespaces/ns/configmaps/a"]
    assert asked == ["POST", "POST", "GET", "GET"]  # for the request, and at the socket


def test_the_kernel_gives_up_what_does_not_arrive_in_time() -> None:
    address = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 1))
    with SendGuard(before_send=None, delivery_timeout=5.0).socket(address) as made:
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000  # milliseconds
