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
"""Bytes that a program on a busy machine may be behind, before the kernel drops packets for it."""
_RATE_SECONDS: Final = 4.0
_SILENT: Final = 3.0
"""Seconds without a packet, after which no more come."""
_LATE: Final = 0.006
"""By which the shortest round trip may be longer: the router's clock ticks each millisecond, twice on the way."""
_HEADERS: Final = 1448 / 1514
"""What TCP carries of a frame."""
_LEAST_RATE, _MOST_RATE = 0.8, 1.02
"""Share of what a link carries. A connection begins slowly; the bucket is full at first."""


class WrongNetwork(RuntimeError):
    """The network is not as it was asked for; the message says where."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a network is like."""

    round_trips: Mapping[tuple[int, int], float]
    """By two regions, seconds; the shortest of some."""
    rates: Mapping[tuple[int, int], float]
    """From one region to another, one at a time, bits of TCP's data a second."""


def measured(network: WideNetwork, *, judged: bool = True) -> Measured:
    """Measure, without losses. Raises `WrongNetwork` if it is not what its links say and that is `judged`."""
    regions = range(len(network.links.rates))
    found = Measured(
        {pair: round_trip(network, *pair) for pair in combinations(regions, 2)},
        {(a, b): rate(network, a, b) for a, b in permutations(regions, 2) if b == (a + 1) % len(regions)},
    )
    if judged and (wrong := list(_wrong(network, found))):
        raise WrongNetwork("; ".join(wrong))
    return found


def _wrong(network: WideNetwork, found: Measured) -> Iterator[str]:
    links = network.links
    for (a, b), seconds in found.round_trips.items():
        asked = 2 * links.delay(a, b)
        if not asked <= seconds <= asked + _LATE:
            yield f"a round trip from region {a} to {b} takes {1e3 * seconds:.1f} ms, not {1e3 * asked:.0f}"
    for (a, b), bits in found.rates.items():
        asked = min(links.rates[a], links.rates[b]) * _HEADERS
        if not _LEAST_RATE <= bits / asked <= _MOST_RATE:
            yield f"from region {a} to {b} go {bits / 1e6:.1f} Mbit/s, not {asked / 1e6:.1f}"


def round_trip(network: WideNetwork, source: int, destination: int) -> float:
    """Return the shortest time of some small packets there and back, seconds: a busy machine makes all others longer."""
    with closing(network.socket(source, socket.SOCK_DGRAM)) as here, closing(network.socket(destination, socket.SOCK_DGRAM)) as there:
        there.bind((network.address(destination), _PORT))
        for end in (here, there):
            end.settimeout(_SILENT)
        times = []
        for _ in range(_PINGS):
            began = time.monotonic()
            here.sendto(b"?", there.getsockname())
            there.sendto(*there.recvfrom(1))
            here.recv(1)
            times.append(time.monotonic() - began)
    return min(times)


def lost(network: WideNetwork, source: int, destination: int, packets: int) -> int:
    """Return how many of so many small packets do not arrive. They are sent so slowly that no queue is full."""
    with closing(network.socket(source, socket.SOCK_DGRAM)) as here, closing(network.socket(destination, socket.SOCK_DGRAM)) as there:
        there.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        there.bind((network.address(destination), _PORT))
        there.settimeout(_SILENT)
        arrived = [0]

        def count() -> None:
            try:
                while there.recv(1):
                    arrived[0] += 1
            except TimeoutError:
                pass

        counting = threading.Thread(target=count)
        counting.start()
        for number in range(packets):
            here.sendto(b"?", (network.address(destination), _PORT))
            if number % 2 == 0:
                time.sleep(0.002)
        counting.join()
    return packets - arrived[0]


def rate(network: WideNetwork, source: int, destination: int) -> float:
    """Return what one TCP connection carries from its beginning on, bits a second."""
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
    """Return bits a second that come in so many seconds."""
    began, count = time.monotonic(), 0
    while (now := time.monotonic()) < began + seconds:
        count += len(connection.recv(_PIECE))
    return 8 * count / (now - began)
