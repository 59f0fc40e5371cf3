"""The middle of the network between regions. It holds each packet for the delay between its two regions, or loses it.

    python -m benchmarks.wan.router DELAYS [--seed N]

DELAYS is JSON: seconds by source and destination. Region i has the tun device `t<i>`: what the router writes to it goes into that region,
and what it reads comes from there. The addresses of region i are 10.77.i.0/24. The router takes JSON lines on standard input, and answers
each with one line:

    {"loss": 0.01}      from now on this share of the packets is lost, independently of each other
    {"cut": [3]}        from now on no packet goes to these regions or comes from them; [] reconnects all
    {}                  only answer

The answer is `{"bytes": […], "packets": […], "lost": N}`: the IP packets since the beginning, by the region that sent them and including
lost ones, and how many were lost. The router ends when its standard input does, or with the process that started it.
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
"""How many packets of one device are read before another has its turn."""
_PRIORITY = -10
"""The router goes before all processes whose packets it carries. If it had to wait for a processor, this would count as delay."""
_IPV4 = 4
_REGION_BYTE = 18
"""Where the destination's region stands in an IPv4 header: it is the third byte of the address."""


class WideArea:
    """The packets that are under way. The methods get the time as an argument, in seconds."""

    def __init__(self, delays: Sequence[Sequence[float]], chance: random.Random) -> None:
        self.loss = 0.0
        self.cut: frozenset[int] = frozenset()
        self.bytes = [0] * len(delays)
        """Bytes of the packets that each region has sent."""
        self.packets = [0] * len(delays)
        self.lost = 0
        """The number of packets that losses and cuts took."""
        self._delays = delays
        self._chance = chance
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._order = itertools.count()

    def take(self, source: int, packet: bytes, now: float) -> None:
        """Take a packet that a region has sent. It is dropped if it is not an IPv4 packet to a region."""
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
        """Take out the packets that have arrived by now, in order. Each comes with its destination."""
        while self._under_way and self._under_way[0][0] <= now:
            _, _, destination, packet = heapq.heappop(self._under_way)
            if destination in self.cut:
                self.lost += 1
            else:
                yield destination, packet

    def next_at(self) -> float | None:
        """When the next packet arrives. None if no packet is under way."""
        return self._under_way[0][0] if self._under_way else None

    def change(self, loss: float | None, cut: Collection[int] | None) -> None:
        """Change the loss and the regions that are cut off. None leaves the value as it is."""
        if loss is not None:
            self.loss = loss
        if cut is not None:
            self.cut = frozenset(cut)

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
                except OSError:  # the device's queue is full, or it is not up yet: the packet is lost, as in any network
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
