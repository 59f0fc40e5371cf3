"""Measures a network between regions before anything is measured on it: round trips, losses and rates."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Final

from benchmarks.wan.network import WideNetwork

_PORT: Final = 9
_PINGS: Final = 15
_PIECE: Final = 1 << 16
_SO_RCVBUFFORCE: Final = 33
"""An option of socket(7): a buffer above the limit of the machine, for root."""
_BUFFER: Final = 8 << 20
"""Bytes that may wait for a program on a busy machine before the kernel drops packets."""
_RATE_SECONDS: Final = 4.0
_SILENT: Final = 3.0
"""Seconds without a packet after which no more are expected."""
_LATE: Final = 0.006
"""The shortest round trip may be this many seconds too long. The router's clock ticks each millisecond, and a packet waits for it twice."""
_HEADERS: Final = 1448 / 1514
"""The share of a frame that is TCP's data."""
_LEAST_RATE, _MOST_RATE = 0.8, 1.02
"""Bounds of the measured rate, as shares of the link's rate. It may be lower because a connection begins slowly, and higher because the
token bucket is full at first."""


class WrongNetwork(RuntimeError):
    """The network is not as it was asked for. The message says where it differs."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Round trips and rates of a network, as they were measured."""

    round_trips: Mapping[tuple[int, int], float]
    """Two regions -> the shortest of several round trips between them, in seconds."""
    rates: Mapping[tuple[int, int], float]
    """Source and destination -> bits of TCP's data a second. They are measured one after the other."""


def measured(network: WideNetwork, *, judged: bool = True) -> Measured:
    """Measure a network that has no losses. If `judged`, raises `WrongNetwork` when the results do not fit its links."""
    regions = range(len(network.links.rates))
    results = Measured(
        {pair: round_trip(network, *pair) for pair in combinations(regions, 2)},
        {(a, b): rate(network, a, b) for a, b in permutations(regions, 2) if b == (a + 1) % len(regions)},
    )
    if judged and (differences := list(_wrong(network, results))):
        raise WrongNetwork("; ".join(differences))
    return results


def _wrong(network: WideNetwork, found: Measured) -> Iterator[str]:
    links = network.links
    for (a, b), seconds in found.round_trips.items():
        expected = 2 * links.delay(a, b)
        if not expected <= seconds <= expected + _LATE:
            yield f"a round trip from region {a} to {b} takes {1e3 * seconds:.1f} ms, not {1e3 * expected:.0f}"
    for (a, b), bits in found.rates.items():
        expected = min(links.rates[a], links.rates[b]) * _HEADERS
        if not _LEAST_RATE <= bits / expected <= _MOST_RATE:
            yield f"from region {a} to {b} go {bits / 1e6:.1f} Mbit/s, not {expected / 1e6:.1f}"


def round_trip(network: WideNetwork, source: int, destination: int) -> float:
    """The shortest of several round trips of a small packet, in seconds. The others are longer because the machine is busy."""
    with closing(network.socket(source, socket.SOCK_DGRAM)) as asking, closing(network.socket(destination, socket.SOCK_DGRAM)) as answering:
        answering.bind((network.address(destination), _PORT))
        for end in (asking, answering):
            end.settimeout(_SILENT)
        times = []
        for _ in range(_PINGS):
            began = time.monotonic()
            asking.sendto(b"?", answering.getsockname())
            answering.sendto(*answering.recvfrom(1))
            asking.recv(1)
            times.append(time.monotonic() - began)
    return min(times)


def lost(network: WideNetwork, source: int, destination: int, packets: int) -> int:
    """Send `packets` small packets, and count those that do not arrive. They are sent so slowly that no queue fills up."""
    with (
        closing(network.socket(source, socket.SOCK_DGRAM)) as sending,
        closing(network.socket(destination, socket.SOCK_DGRAM)) as receiving,
    ):
        receiving.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        receiving.bind((network.address(destination), _PORT))
        receiving.settimeout(_SILENT)
        arrived = [0]

        def count() -> None:
            try:
                while receiving.recv(1):
                    arrived[0] += 1
            except TimeoutError:
                pass

        counting = threading.Thread(target=count)
        counting.start()
        for number in range(packets):
            sending.sendto(b"?", (network.address(destination), _PORT))
            if number % 2 == 0:
                time.sleep(0.002)
        counting.join()
    return packets - arrived[0]


def rate(network: WideNetwork, source: int, destination: int) -> float:
    """The rate of one TCP connection, including its slow beginning: bits a second."""
    with closing(network.socket(destination, socket.SOCK_STREAM)) as listening:
        listening.bind((network.address(destination), _PORT))
        listening.listen(1)
        listening.settimeout(_SILENT)
        with closing(network.socket(source, socket.SOCK_STREAM)) as sending:
            sending.settimeout(_SILENT)
            sending.connect(listening.getsockname())
            receiving, _ = listening.accept()
            stopped = threading.Event()

            def send() -> None:
                while not stopped.is_set():
                    try:
                        sending.send(bytes(_PIECE))
                    except OSError:  # the other end has what it wanted
                        return

            thread = threading.Thread(target=send)
            thread.start()
            try:
                with closing(receiving):
                    receiving.settimeout(_SILENT)
                    return _received(receiving, _RATE_SECONDS)
            finally:
                stopped.set()
                thread.join()


def _received(connection: socket.socket, seconds: float) -> float:
    """Receive for `seconds`. Returns the rate: bits a second."""
    began, count = time.monotonic(), 0
    while (now := time.monotonic()) < began + seconds:
        count += len(connection.recv(_PIECE))
    return 8 * count / (now - began)
