"""Links between clusters of one machine. Times are measured against each other, and only from below: a busy machine is never too fast."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from diloco_local.links import Direction, Links, LinkShape

NARROW = 8e6
"""Bits a second: a megabyte."""


@contextlib.contextmanager
def an_echo() -> Iterator[str]:
    """A server that sends back what comes, until each connection is closed."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while piece := connection.recv(65536):
                connection.sendall(piece)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield "{}:{}".format(*listener.getsockname())
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def connected(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def echoed(connection: socket.socket, data: bytes) -> bytes:
    """Send all and return what comes back, to its last byte."""

    def send() -> None:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

    sending = threading.Thread(target=send)
    sending.start()
    pieces = []
    while piece := connection.recv(65536):
        pieces.append(piece)
    sending.join()
    return b"".join(pieces)


def test_all_bytes_arrive_in_order_and_are_counted_in_both_directions() -> None:
    data = bytes(range(256)) * 4096
    with an_echo() as target, Links() as links:
        link = links.add(LinkShape(latency=0.01))
        with connected(link.relay(target)) as connection:
            assert echoed(connection, data) == data
        assert (link.up.bytes, link.down.bytes) == (len(data), len(data))


def test_many_segments_fit_into_the_buffers_of_a_relay() -> None:
    """The kernel holds a larger one back, and each message of more than a buffer would take 40 to 200 ms longer."""
    with an_echo() as target, Links() as links, connected(links.add().relay(target)) as connection:
        segment = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        assert (echoed(connection, b"?"), segment < 1500) == (b"?", True)


def test_an_answer_takes_the_round_trip() -> None:
    with an_echo() as target, Links() as links:
        with connected(links.add(LinkShape(latency=0.05)).relay(target)) as connection:
            began = time.monotonic()
            connection.sendall(b"?")
            assert connection.recv(1) == b"?"
        assert time.monotonic() - began >= 0.1


def test_connections_of_one_link_share_its_rate() -> None:
    """Half a megabyte on each of two connections at a megabyte a second, in both directions at once: a second, less what is forgiven."""
    data = bytes(500_000)
    with an_echo() as target, Links() as links:
        address = links.add(LinkShape(NARROW)).relay(target)
        began = time.monotonic()
        threads = [threading.Thread(target=lambda: echoed(connected(address), data)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - began >= 0.9


def test_links_share_the_rate_of_the_link_behind_them() -> None:
    """Each has two megabytes a second for itself, and both together have one: the last of two megabytes has gone after two seconds."""
    shared = Direction(1e6)
    first, second = Direction(2e6, shared), Direction(2e6, shared)
    assert [way.take(500_000, 0.0) for way in (first, second, first, second)] == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert Direction().take(1 << 40, 7.0) == 7.0, "a link without a limit takes no time"
    assert math.isinf(Direction().bytes_per_second)


def test_a_cut_breaks_connections_and_refuses_new_ones_until_it_heals() -> None:
    with an_echo() as target, Links() as links:
        link = links.add()
        address = link.relay(target)
        with connected(address) as before:
            before.sendall(b"?")
            assert before.recv(1) == b"?"
            link.cut()
            assert ends(before)
        with connected(address) as during:
            assert ends(during)
        link.heal()
        with connected(address) as after:
            assert echoed(after, b"again") == b"again"


def test_a_connection_ends_if_nothing_listens_at_the_target() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        target = "{}:{}".format(*gone.getsockname())
    with Links() as links, connected(links.add().relay(target)) as connection:
        assert ends(connection)


def test_each_connection_goes_where_its_target_is_then_and_ends_while_there_is_none() -> None:
    targets: list[str | None] = [None]
    with an_echo() as target, Links() as links:
        address = links.add().relay(lambda: targets[-1])
        with connected(address) as early:
            assert ends(early)
        targets.append(target)
        with connected(address) as late:
            assert echoed(late, b"?") == b"?"


def ends(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
