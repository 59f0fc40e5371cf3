"""The network between regions, without one: what the router does with packets, how links are scaled, and what is missing."""

import os
import random

import pytest

from benchmarks.namespaces import NoNetwork
from benchmarks.wan.network import WideNetwork
from benchmarks.wan.regions import scaled
from benchmarks.wan.router import WideArea

DELAYS = [[0.0, 0.01, 0.04], [0.01, 0.0, 0.05], [0.04, 0.05, 0.0]]


def an_area(*, loss: float = 0.0) -> WideArea:
    area = WideArea(DELAYS, random.Random(1))
    area.change(loss, None)
    return area


def a_packet(region: int, text: bytes = b"") -> bytes:
    """Return one of IPv4 with 20 bytes of header, to 10.77.<region>.2."""
    return bytes([0x45, *([0] * 15), 10, 77, region, 2]) + text


def test_a_packet_arrives_after_the_delay_of_its_way_and_not_before() -> None:
    area = an_area()
    area.take(0, a_packet(1), now=5.0)
    assert area.next_at() == pytest.approx(5.01)
    assert list(area.arrived(5.009)) == []
    assert list(area.arrived(5.0101)) == [(1, a_packet(1))]
    assert area.next_at() is None


def test_packets_of_one_way_keep_their_order_and_those_of_a_shorter_one_pass_them() -> None:
    area = an_area()
    area.take(0, a_packet(2, b"first"), now=0.0)
    area.take(0, a_packet(2, b"second"), now=0.0)
    area.take(0, a_packet(1), now=0.02)
    assert [destination for destination, _ in area.arrived(0.035)] == [1]
    assert [packet[20:] for _, packet in area.arrived(0.05)] == [b"first", b"second"]


def test_the_share_of_packets_that_is_lost_is_the_one_that_was_asked_for() -> None:
    """200 of 20,000 packets are lost in the mean, with a standard deviation of 14: 5 of them to each side."""
    area = an_area(loss=0.01)
    for _ in range(20_000):
        area.take(0, a_packet(1), now=0.0)
    arrived = len(list(area.arrived(1.0)))
    assert area.lost == 20_000 - arrived
    assert 130 <= area.lost <= 270


def test_a_region_that_is_cut_off_gets_and_gives_nothing_not_even_what_was_under_way() -> None:
    area = an_area()
    area.take(0, a_packet(2), now=0.0)
    area.change(None, [2])
    area.take(2, a_packet(0), now=0.0)
    area.take(0, a_packet(2), now=0.0)
    area.take(0, a_packet(1), now=0.0)
    assert [destination for destination, _ in area.arrived(1.0)] == [1]
    assert area.lost == 3
    area.change(None, [])
    area.take(2, a_packet(0), now=1.0)
    assert [destination for destination, _ in area.arrived(2.0)] == [0]


def test_bytes_and_packets_are_counted_by_the_region_that_sent_them() -> None:
    area = an_area(loss=0.5)
    area.take(1, a_packet(0, bytes(80)), now=0.0)
    area.take(1, a_packet(2, bytes(30)), now=0.0)
    assert area.bytes == [0, 150, 0]
    assert area.packets == [0, 2, 0]


@pytest.mark.parametrize("packet", [b"", bytes(20), bytes([0x60, *([0] * 39)]), a_packet(3)])
def test_what_is_no_packet_to_a_region_is_dropped(packet: bytes) -> None:
    area = an_area()
    area.take(0, packet, now=0.0)
    assert list(area.arrived(1.0)) == []
    assert area.packets == [0, 0, 0]


def test_rates_go_with_the_parameters_and_with_the_inverse_of_the_step() -> None:
    """2 Gbit/s for 12e9 parameters and 4 s is 2 bit/s for 12 parameters: 12e6 in 0.25 s have 2e6 * 16 bit/s."""
    links = scaled(12_000_000, 0.25)
    assert links.rates == pytest.approx((80e6, 64e6, 48e6, 32e6))


def test_without_root_it_says_so_and_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NoNetwork, match="need root: run it as root"), WideNetwork(scaled(1_000_000, 0.1)):
        pass
