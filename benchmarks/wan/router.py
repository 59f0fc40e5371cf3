"""The middle of the network between regions: each packet waits for the delay of its way, or is lost.

    python -m benchmarks.wan.router DELAYS [--seed N]

DELAYS is JSON, seconds by source and destination. Region i has the device `t<i>`, a tun: what is written to it goes into that region, what
is read comes from there. The addresses of region i are 10.77.i.0/24. On standard input it takes JSON lines, and answers each with one:

    {"loss": 0.01}      from now on this share of the packets is lost, each by itself
    {"cut": [3]}        from now on nothing goes to these regions or comes from them; []: all are back
    {}                  only answer

The answer is `{"bytes": […], "packets": […], "lost": N}` since the beginning: IP packets by the region that sent them, with those that were
lost then. It ends with its standard input, or with the process that started it.
"""

from __future__ import annotations

import argparse
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import struct
import sys
import time
from collections.abc import Collection, Iterator, Sequence

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_MOST_BYTES = 1 << 16
_AT_ONCE = 64
"""Packets of one device before another has its turn."""
_PRIORITY = -10
"""Before all that it carries: what waits for a processor here would count as delay."""
_IPV4 = 4
_REGION_BYTE = 18
"""The destination's place that names the region, in the header of IPv4."""


class WideArea:
    """Packets on their ways. Time is an argument, seconds."""

    def __init__(self, delays: Sequence[Sequence[float]], chance: random.Random) -> None:
        self.loss = 0.0
        self.cut: frozenset[int] = frozenset()
        self.bytes = [0] * len(delays)
        """Bytes of the packets that each region has sent."""
        self.packets = [0] * len(delays)
        self.lost = 0
        """That did not arrive, or will not, for loss and cuts together."""
        self._delays = delays
        self._chance = chance
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._order = itertools.count()

    def take(self, source: int, packet: bytes, now: float) -> None:
        """Take a packet that a region has sent. What is no IPv4 packet to a region is dropped."""
        if len(packet) <= _REGION_BYTE or packet[0] >> 4 != _IPV4 or packet[_REGION_BYTE] >= len(self._delays):
            return
        destination = packet[_REGION_BYTE]
        self.bytes[source] += len(packet)
        self.packets[source] += 1
        if self._stops(source, destination) or self._chance.random() < self.loss:
            self.lost += 1
            return
        heapq.heappush(self._under_way, (now + self._delays[source][destination], next(self._order), destination, packet))

    def arrived(self, now: float) -> Iterator[tuple[int, bytes]]:
        """Yield the packets that have come to their regions by now, in order."""
        while self._under_way and self._under_way[0][0] <= now:
            _, _, destination, packet = heapq.heappop(self._under_way)
            if destination in self.cut:
                self.lost += 1
            else:
                yield destination, packet

    def next_at(self) -> float | None:
        """When the next packet arrives; None: none is under way."""
        return self._under_way[0][0] if self._under_way else None

    def change(self, loss: float | None, cut: Collection[int] | None) -> None:
        """Change what is given; None: it stays."""
        self.loss = self.loss if loss is None else loss
        self.cut = self.cut if cut is None else frozenset(cut)

    def _stops(self, source: int, destination: int) -> bool:
        return source in self.cut or destination in self.cut


def _tun(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


class _Router:
    def __init__(self, area: WideArea, devices: Sequence[int]) -> None:
        self._area = area
        self._devices = devices
        self._poll = select.epoll()
        self._region = {device: index for index, device in enumerate(devices)}
        for device in (*devices, sys.stdin.fileno()):
            self._poll.register(device, select.EPOLLIN)

    def run(self) -> None:
        """Route until standard input ends."""
        while True:
            due = self._area.next_at()
            wait = -1.0 if due is None else max(0.0, due - time.monotonic())
            for ready, _ in self._poll.poll(wait):
                if ready == sys.stdin.fileno():
                    if not self._obey(sys.stdin.readline()):
                        return
                else:
                    self._read(ready)
            for destination, packet in self._area.arrived(time.monotonic()):
                try:
                    os.write(self._devices[destination], packet)
                except OSError:  # the device's queue is full, or it is not up yet: a packet is lost, as in any network
                    self._area.lost += 1

    def _read(self, device: int) -> None:
        now = time.monotonic()
        try:
            for _ in range(_AT_ONCE):
                self._area.take(self._region[device], os.read(device, _MOST_BYTES), now)
        except BlockingIOError:
            pass

    def _obey(self, line: str) -> bool:
        if not line:
            return False
        asked = json.loads(line)
        self._area.change(asked.get("loss"), asked.get("cut"))
        answer = {"bytes": self._area.bytes, "packets": self._area.packets, "lost": self._area.lost}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        return True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("delays", type=json.loads)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    devices = [_tun(f"t{index}") for index in range(len(given.delays))]
    _Router(WideArea(given.delays, random.Random(given.seed)), devices).run()


if __name__ == "__main__":
    main()
