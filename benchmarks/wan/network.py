"""Regions as network namespaces, joined by links with a rate and by a router with delay and loss.

    region i: `wan` 10.77.i.2 --veth-- `c<i>` 10.77.i.1 :middle: `t<i>` --tun-- router

Each region has a namespace, and so has the middle. A packet leaves its region by `wan`, whose tbf is the region's uplink. In the middle, a
rule for the incoming device sends the packet to the router, through the tun of the region. After the delay the router puts it back through
the tun of its destination. The tbf of `c<j>` is that region's downlink. The machine's own namespace is never touched.

The namespaces have no names. A namespace lives as long as this process has it open or a process runs in it. Those processes end with this
one, and the devices of a namespace go with it. So nothing remains, even after SIGKILL.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from benchmarks import ROOT
from benchmarks.namespaces import NoNetwork, entering, in_namespace, new_namespace, run_in
from benchmarks.wan.regions import Links

DEVICE: Final = "wan"
"""The network device of a region through which it reaches all others."""
_TUN: Final = Path("/dev/net/tun")
_QUEUE_SECONDS: Final = 0.1
"""A link's queue holds what it carries in this time. It drops packets beyond that."""
_LEAST_QUEUE, _LEAST_BURST = 64_000, 16_000
"""Bytes."""
_FIRST_TABLE: Final = 100
"""The routing table of region 0 in the middle. Region i has the i-th after it."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What the router has counted so far."""

    bytes: tuple[int, ...]
    """Bytes of the IP packets that each region sent, including lost ones."""
    packets: tuple[int, ...]
    """The number of these packets."""
    lost: int
    """The number of packets that were lost."""


def missing() -> list[str]:
    """What this machine lacks, one sentence each."""
    lacks = []
    if os.geteuid() != 0:
        lacks.append("network namespaces and their links need root: run it as root.")
    lacks += [f"the program {tool} is missing: install iproute2." for tool in ("ip", "tc") if shutil.which(tool) is None]
    if not _TUN.exists():
        lacks.append(f"{_TUN} is missing: load the kernel's module tun, or give the device to this container.")
    return lacks


class WideNetwork:
    """A network that exists while the context is open."""

    def __init__(self, links: Links, *, seed: int = 1) -> None:
        """`seed` decides which packets are lost."""
        self.links = links
        self._seed = seed
        self._stack = ExitStack()
        self._regions: list[int] = []
        """Descriptors of the namespaces."""

    def __enter__(self) -> Self:
        if lacking := missing():
            raise NoNetwork(" ".join(lacking))
        with ExitStack() as stack:
            count = len(self.links.rates)
            self._middle = new_namespace(stack)
            self._regions = [new_namespace(stack) for _ in range(count)]
            self._router = stack.enter_context(_Router(self.links.delays(), self._seed, entering(self._middle)))
            self._set_up_middle()
            for index in range(count):
                self._set_up(index)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def router_pid(self) -> int:
        return self._router.pid

    @staticmethod
    def address(region: int) -> str:
        """The address that all processes in a region share."""
        return f"10.77.{region}.2"

    def entering(self, region: int) -> Callable[[], None]:
        """The `preexec_fn` with which a new process enters a region and ends when this process does."""
        return entering(self._regions[region])

    def socket(self, region: int, kind: socket.SocketKind) -> socket.socket:
        """Open an IPv4 socket in a region, for this process."""
        return in_namespace(self._regions[region], lambda: socket.socket(socket.AF_INET, kind))

    @property
    def congestion_control(self) -> str:
        """How TCP reacts to losses. It is the machine's setting, since namespaces may not choose freely."""
        return in_namespace(self._regions[0], lambda: Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip())

    def set_loss(self, share: float) -> None:
        """Lose this share of all packets between regions from now on."""
        self._router.ask({"loss": share})

    def cut(self, regions: Collection[int]) -> None:
        """Cut these regions off, and reconnect all others."""
        self._router.ask({"cut": sorted(regions)})

    def sent(self) -> Sent:
        return self._router.ask({})

    # --- setting up ---------------------------------------------------------------------------------------------------

    def _set_up_middle(self) -> None:
        settings = {"ip_forward": "1", "conf/all/rp_filter": "0", "conf/default/rp_filter": "0", "conf/all/send_redirects": "0"}
        _settings(self._middle, settings)

    def _set_up(self, region: int) -> None:
        """Create the region's two devices, limit their rates, and set its routes."""
        inner, outer, tun, table = self._regions[region], f"c{region}", f"t{region}", str(_FIRST_TABLE + region)
        rate = self.links.rates[region]
        path = f"/proc/{os.getpid()}/fd/{inner}"
        run_in(self._middle, "ip", "link", "add", outer, "type", "veth", "peer", "name", DEVICE, "netns", path)
        _settings(inner, {"tcp_no_metrics_save": "1"})
        for namespace, device, last in ((self._middle, outer, 1), (inner, DEVICE, 2)):
            _settings(namespace, {f"conf/{device}/rp_filter": "0", f"conf/{device}/send_redirects": "0"})
            run_in(namespace, "ip", "address", "add", f"10.77.{region}.{last}/24", "dev", device)
            run_in(namespace, "ip", "link", "set", device, "up")
            run_in(namespace, "tc", "qdisc", "add", "dev", device, "root", "tbf", *_token_bucket(rate))
        run_in(inner, "ip", "link", "set", "lo", "up")
        run_in(inner, "ip", "route", "add", "default", "via", f"10.77.{region}.1")
        _settings(self._middle, {f"conf/{tun}/rp_filter": "0"})
        run_in(self._middle, "ip", "link", "set", tun, "up", "txqueuelen", "5000")
        run_in(self._middle, "ip", "route", "add", "default", "dev", tun, "table", table)
        run_in(self._middle, "ip", "rule", "add", "iif", outer, "lookup", table)


class _Router:
    """The process of the router."""

    def __init__(self, delays: Sequence[Sequence[float]], seed: int, enter: Callable[[], None]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.wan.router", json.dumps(delays), "--seed", str(seed)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=enter,
        )

    def __enter__(self) -> Self:
        self.ask({})  # its devices are there once it answers
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, what: dict[str, Any]) -> Sent:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise NoNetwork("the router between the regions has ended; its messages are above")
        answer = json.loads(line)
        return Sent(tuple(answer["bytes"]), tuple(answer["packets"]), answer["lost"])


def _token_bucket(rate: float) -> Iterator[str]:
    """The parameters of tbf for `rate` bits a second."""
    yield from ("rate", f"{round(rate)}bit")
    yield from ("burst", str(max(_LEAST_BURST, round(rate / 8 / 100))))  # the kernel's clock ticks 100 times a second or more
    yield from ("limit", str(max(_LEAST_QUEUE, round(rate / 8 * _QUEUE_SECONDS))))


def _settings(namespace: int, values: dict[str, str]) -> None:
    """Write IPv4 settings in a namespace."""

    def write() -> None:
        for name, value in values.items():
            Path("/proc/sys/net/ipv4", name).write_text(value)

    in_namespace(namespace, write)
