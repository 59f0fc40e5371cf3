"""What the sender of chunks may have under way, on simulated links."""

from __future__ import annotations

import heapq
import itertools
import math

import pytest
from diloco.protocol.diloco_pb2 import Taken
from diloco.protocol.framing import MOST_CHUNK_BYTES, FramingError
from diloco.protocol.window import (
    ACKNOWLEDGED_BYTES,
    CHUNKS,
    FIRST_BYTES,
    HELD_BYTES,
    HOLD_SECONDS,
    LEAST_BYTES,
    MOST_BYTES,
    MOST_QUEUE_BYTES,
    PROBE_SECONDS,
    QUEUE_SECONDS,
    REPORTED_ROUND_TRIPS,
    Receipts,
    Window,
)
from diloco.syncer.reporting.cluster_links import PeakRate

MIB = 1 << 20


class Link:
    """A sender that always has something to send, on a link with a rate (bytes per second) and a round trip (seconds)."""

    def __init__(self, rate: float, round_trip: float, *, holds: bool = False) -> None:
        """`holds`: an acknowledgement waits for a message to go beside, and none comes."""
        self.rate, self.round_trip = rate, round_trip
        self.now = 0.0
        self.window, self.receipts = Window(), Receipts()
        self.receipts.go_beside = holds
        self.window.limit()
        self.delivered = 0
        self.peak = PeakRate()
        """Of what was acknowledged."""
        self.longest_wait = 0.0
        """From sending a chunk to its acknowledgement, since this was set to 0."""
        self._free_at = 0.0
        self._coming: list[tuple[float, int, float, int]] = []
        """When what comes, in order: a chunk with the moment at which it was sent and its bytes; without bytes, a look at the receipts."""
        self._order, self._chunks = itertools.count(), itertools.count()

    def run(self, seconds: float) -> Link:
        until = self.now + seconds
        while self.now < until:
            while self.window.is_open(self.now):
                self._send()
            self.now, _, sent_at, count = heapq.heappop(self._coming)
            if count:
                self.delivered += count
                self.longest_wait = max(self.longest_wait, self.now - sent_at)
                # Every second chunk ends a payload, but for those that measure the round trip.
                self.receipts.take(count, self.now, more=count == ACKNOWLEDGED_BYTES or next(self._chunks) % 2 == 0)
            if self.now >= self.receipts.due_at:
                before = self.window.under_way
                self.window.taken(self.receipts.tell(self.now), self.now)
                self.peak.add(before - self.window.under_way, self.now)
            elif count and self.receipts.due_at < math.inf:
                heapq.heappush(self._coming, (self.receipts.due_at, next(self._order), self.now, 0))
        return self

    def _send(self) -> None:
        count = self.window.chunk_bytes(self.now)
        self.window.sent(count, self.now)
        self._free_at = max(self._free_at, self.now) + count / self.rate
        heapq.heappush(self._coming, (self._free_at + self.round_trip, next(self._order), self.now, count))


# --- links --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("holds", [False, True], ids=["at-once", "held"])
@pytest.mark.parametrize("round_trip", [0.0005, 0.02, 0.1])
@pytest.mark.parametrize("rate", [1 * MIB, 10 * MIB, 30 * MIB, 300 * MIB])
def test_a_busy_link_carries_all_it_can_and_chunks_wait_a_short_time_only(rate: float, round_trip: float, holds: bool) -> None:
    link = Link(rate, round_trip, holds=holds).run(2.0)
    link.longest_wait = 0.0
    before = link.delivered
    link.run(10.0)
    assert link.delivered - before >= 0.98 * 10.0 * rate
    # The round trip is measured with a small chunk, which takes some time itself. What is under way may be a window and a chunk.
    measured = round_trip + ACKNOWLEDGED_BYTES / rate
    window = max(LEAST_BYTES, rate * (measured + QUEUE_SECONDS))
    assert link.longest_wait <= round_trip + (1 + 1 / CHUNKS) * window / rate + 1e-6


@pytest.mark.parametrize("round_trip", [0.02, 0.1])
@pytest.mark.parametrize("rate", [1 * MIB, 10 * MIB, 30 * MIB])
def test_the_rate_and_round_trip_of_a_busy_link_are_measured(rate: float, round_trip: float) -> None:
    link = Link(rate, round_trip).run(20.0)
    # The window keeps the link full, and at most the chunks of a window come earlier or later than the time in which they are counted.
    assert link.peak.value(link.now) == pytest.approx(rate, rel=0.05)
    assert link.window.round_trip == pytest.approx(round_trip + ACKNOWLEDGED_BYTES / rate, rel=0.01)


def test_the_round_trip_for_reports_is_that_of_the_link_while_other_streams_fill_it() -> None:
    link = Link(1 * MIB, 0.1).run(1.0)
    own = link.window.round_trip
    link.round_trip = 0.4
    link.run(PROBE_SECONDS * (REPORTED_ROUND_TRIPS - 2))
    assert link.window.round_trip == own
    link.run(PROBE_SECONDS * 10)  # a probe also waits until the link is empty, half a second
    assert link.window.round_trip >= 0.4, "ten minutes later the link has become longer"


def test_the_window_of_a_fast_link_grows_within_a_few_round_trips() -> None:
    # It is (0.05 + 0.1) / 0.05 = 3 times as large in each, from 0.5 MiB to 4.5; then the queue is full, and 8 MiB are added in each: after
    # 2 + (64 - 4.5) / 8 = 9.4 round trips it is 64 MiB.
    link = Link(4096 * MIB, 0.05).run(11 * 0.05)
    assert link.window.bytes == MOST_BYTES


def test_little_waits_on_a_fast_link_and_yet_it_is_full() -> None:
    link = Link(1024 * MIB, 0.02).run(2.0)
    link.longest_wait = 0.0
    before = link.delivered
    link.run(5.0)
    assert link.delivered - before >= 0.98 * 5.0 * link.rate
    # The round trip is measured with a small chunk, which takes some time itself. What is under way may be a window and a chunk.
    waiting = ACKNOWLEDGED_BYTES + MOST_QUEUE_BYTES + MOST_CHUNK_BYTES
    assert link.longest_wait <= link.round_trip + waiting / link.rate + 1e-6


def test_a_link_that_becomes_slower_gets_a_smaller_window() -> None:
    link = Link(50 * MIB, 0.01).run(3.0)
    link.rate = 2 * MIB
    link.run(8.0)
    link.longest_wait = 0.0
    link.run(2.0)
    assert link.longest_wait <= 0.3
    assert link.window.bytes < MIB / 2


def test_a_link_that_becomes_longer_while_it_is_busy_does_not_lose_its_rate() -> None:
    """With the round trip of before, each window would be measured as less than the last one, down to the smallest."""
    link = Link(10 * MIB, 0.01).run(5.0)
    link.round_trip = 0.4
    link.run(5 * PROBE_SECONDS)
    before = link.delivered
    link.run(10.0)
    assert link.delivered - before >= 0.9 * 10 * 10 * MIB


def test_a_pause_of_the_sender_says_nothing_about_the_link() -> None:
    window, now = Window(), 0.0
    window.limit()
    total = 0
    for _ in range(50):
        total = window.sent(FIRST_BYTES // CHUNKS, now)
        window.taken(Taken(bytes=total), now + 0.001)
        now += 0.01
    wide = window.bytes
    for _ in range(50):
        total = window.sent(ACKNOWLEDGED_BYTES, now)
        window.taken(Taken(bytes=total), now + 0.001)
        now += 1.0
    assert window.bytes == pytest.approx(wide)
    assert wide > FIRST_BYTES


def test_payloads_smaller_than_an_acknowledgement_measure_nothing() -> None:
    window, receipts = Window(), Receipts()
    window.limit()
    for step in range(100):
        assert window.is_open(step)
        window.sent(ACKNOWLEDGED_BYTES // 3, step)
        receipts.take(ACKNOWLEDGED_BYTES // 3, step)
        if step >= receipts.due_at:
            window.taken(receipts.tell(step), step + 0.001)
    assert window.bytes == FIRST_BYTES


# --- acknowledgements ---------------------------------------------------------------------------------------------------


def test_the_window_is_open_for_a_peer_that_does_not_acknowledge() -> None:
    window = Window()
    window.sent(1 << 40, 0.0)
    assert window.is_open(0.0)


def test_the_window_closes_when_it_is_full_and_opens_with_an_acknowledgement() -> None:
    window = Window()
    window.limit()
    window.sent(FIRST_BYTES - 1, 0.0)
    assert window.is_open(0.0)
    window.sent(1, 0.0)
    assert not window.is_open(0.0)
    window.taken(Taken(bytes=ACKNOWLEDGED_BYTES), 0.1)
    assert window.is_open(0.1)


@pytest.mark.parametrize("total", [101, 49])
def test_a_peer_can_acknowledge_neither_what_was_not_sent_nor_less_than_before(total: int) -> None:
    window = Window()
    window.sent(100, 0.0)
    window.taken(Taken(bytes=50), 0.0)
    with pytest.raises(FramingError, match=f"acknowledges {total} bytes of 100 after it has acknowledged 50"):
        window.taken(Taken(bytes=total), 0.0)


def test_what_has_arrived_is_known_but_for_the_last_bytes_that_are_not_acknowledged_yet() -> None:
    window = Window()
    end = window.sent(MIB, 0.0)
    window.taken(Taken(bytes=MIB - ACKNOWLEDGED_BYTES), 0.0)
    assert not window.has_arrived(end)
    window.taken(Taken(bytes=MIB - ACKNOWLEDGED_BYTES + 1), 0.0)
    assert window.has_arrived(end)


def test_the_receiver_acknowledges_all_at_once() -> None:
    receipts = Receipts()
    receipts.take(ACKNOWLEDGED_BYTES - 1, 1.0)
    assert receipts.due_at == math.inf
    receipts.take(1, 2.0)
    receipts.take(5, 3.0)
    assert receipts.due_at == 2.0
    assert receipts.tell(3.0).bytes == ACKNOWLEDGED_BYTES + 5
    assert receipts.due_at == math.inf


# --- acknowledgements that go beside other messages -----------------------------------------------------------------------


@pytest.fixture
def receipts() -> Receipts:
    found = Receipts()
    found.go_beside = True
    return found


def test_an_acknowledgement_waits_for_a_message_to_go_beside_and_then_goes_alone(receipts: Receipts) -> None:
    receipts.take(ACKNOWLEDGED_BYTES, 1.0)
    receipts.take(ACKNOWLEDGED_BYTES, 1.02)
    assert receipts.due_at == 1.0 + HOLD_SECONDS
    beside = receipts.beside(1.03)
    assert beside is not None
    assert beside.bytes == 2 * ACKNOWLEDGED_BYTES
    assert beside.held == pytest.approx(0.01)
    assert receipts.due_at == math.inf
    assert receipts.beside(1.04) is None, "it has been said"


def test_a_large_payload_is_acknowledged_without_waiting(receipts: Receipts) -> None:
    receipts.take(HELD_BYTES - 1, 1.0)
    receipts.take(1, 1.01)
    assert receipts.due_at <= 1.01


def test_a_chunk_behind_which_its_payload_goes_on_is_acknowledged_without_waiting(receipts: Receipts) -> None:
    receipts.take(ACKNOWLEDGED_BYTES, 1.0, more=True)
    assert receipts.due_at == 1.0
    receipts.tell(1.0)
    receipts.take(ACKNOWLEDGED_BYTES, 2.0)
    assert receipts.due_at == 2.0 + HOLD_SECONDS


def test_nothing_goes_beside_a_message_to_a_sender_that_does_not_read_it_there() -> None:
    receipts = Receipts()
    receipts.take(ACKNOWLEDGED_BYTES, 1.0)
    assert receipts.beside(1.0) is None


def test_the_time_for_which_an_acknowledgement_waited_is_not_the_links() -> None:
    """The same chunks, acknowledged at once or held for 40 ms, measure the same rate and round trip."""

    def limit(held: float) -> float:
        window, now = Window(), 0.0
        window.limit()
        for _ in range(10):
            total = window.sent(8 * ACKNOWLEDGED_BYTES, now)
            window.taken(Taken(bytes=total, held=held), now + 0.01 + held)
            now += 1.0
        return window.bytes

    assert limit(0.04) == pytest.approx(limit(0.0))


@pytest.mark.parametrize("held", [-1.0, math.nan, math.inf, 1e9])
def test_what_a_peer_says_of_its_waiting_changes_no_clock(held: float) -> None:
    window = Window()
    window.limit()
    total = window.sent(ACKNOWLEDGED_BYTES, 10.0)
    assert 10.0 <= window.taken(Taken(bytes=total, held=held), 10.2) <= 10.2
    assert LEAST_BYTES <= window.bytes <= MOST_BYTES
