"""Latency and loss of the way to a syncer."""

import math
from functools import partial
from statistics import mean

import pytest
from diloco.protocol.window import MOST_BYTES
from diloco.simulation.network import Network, Sizes
from diloco.simulation.path import SEGMENT_BITS, Path, congestion_window, repairs
from diloco.simulation.timeline import Timeline
from numpy.random import default_rng


@pytest.mark.parametrize(
    ("loss", "at_100_ms", "at_10_ms"),
    # RFC 9438, tables 1 and 2, with C = 0.4.
    [
        (1e-2, 12, 12),
        (1e-3, 38, 38),
        (1e-4, 187, 120),
        (1e-5, 1054, 379),
        (1e-6, 5926, 1200),
        (1e-7, 33325, 5926),
        (1e-8, 187400, 33325),
    ],
)
def test_the_window_is_that_of_the_tables_of_the_rfc(loss: float, at_100_ms: int, at_10_ms: int) -> None:
    assert congestion_window(loss, 0.1) == pytest.approx(at_100_ms, rel=2e-3, abs=0.6)
    assert congestion_window(loss, 0.01) == pytest.approx(at_10_ms, rel=2e-3, abs=0.6)


def test_a_connection_has_a_window_in_each_round_trip_and_a_unit_several_connections() -> None:
    assert Path().rate == math.inf
    assert Path(bandwidth=1e9, latency=0.01).rate == 1e9, "8 MiB in 20 ms are more"
    assert Path(latency=0.05).rate == pytest.approx(8 * MOST_BYTES / 0.1)
    # 38 segments of 11,680 bits in 0.1 s.
    lossy = Path(latency=0.05, loss=1e-3)
    assert lossy.rate == pytest.approx(1.2 / math.sqrt(1e-3) * SEGMENT_BITS / 0.1)
    assert Path(latency=0.05, loss=1e-3, connections=8).rate == pytest.approx(8 * lossy.rate)
    assert lossy.sent(999.0) == pytest.approx(1000.0)


def test_one_segment_is_repaired_as_often_as_it_is_lost() -> None:
    random = default_rng(3)
    found = [repairs(0.2, 1.0, random.random()) for _ in range(20_000)]
    # Geometric: a fifth is sent again, a fifth of these once more; 0.25 repairs in the mean. Five standard errors of sqrt(0.3125 / 20,000).
    assert mean(found) == pytest.approx(0.25, abs=0.02)
    assert mean(count > 0 for count in found) == pytest.approx(0.2, abs=0.015)


def test_of_many_segments_nearly_always_one_is_repaired() -> None:
    random = default_rng(3)
    found = [repairs(0.01, 500.0, random.random()) for _ in range(2000)]
    # None is lost with 0.99^500 = 0.0066, none twice with (1 - 0.0001)^500 = 0.951.
    assert mean(count >= 1 for count in found) == pytest.approx(1 - 0.0066, abs=0.01)
    assert mean(count >= 2 for count in found) == pytest.approx(1 - 0.951, abs=0.025)
    assert repairs(0.01, 1.0, 0.0) == 0


class Heard:
    """A network with one unit, and what was heard when."""

    def __init__(self, path: Path) -> None:
        self.timeline = Timeline()
        self.network = Network(self.timeline, Sizes(1e6, 1e6), default_rng(1), overlap_steps=2)
        self.network.connect("u", path)
        self.heard: list[tuple[str, float]] = []

    def note(self, what: str) -> None:
        self.heard.append((what, self.timeline.now))

    def run(self) -> None:
        while not math.isinf(self.timeline.next_at):
            self.timeline.step()


def test_words_are_heard_after_the_latency_and_what_has_left_before_them_and_an_answer_after_its_transfer() -> None:
    one = Heard(Path(bandwidth=1e6, latency=0.25))
    one.network.answer("u", 0, 1, lambda: one.note("answer"))
    one.network.tell_syncer("u", lambda: one.note("report"))
    one.network.tell_unit("u", lambda: one.note("pull"))
    one.run()
    # 100 ms of the answer, at this rate, have left the unit before the report.
    assert one.heard == [("pull", 0.25), ("report", pytest.approx(0.35)), ("answer", 1.25)]


def test_a_pull_waits_until_the_unit_has_been_sent_the_newest_version_of_its_fragment() -> None:
    one = Heard(Path(bandwidth=1e6, latency=0.25))
    one.network.broadcast("u", 0, 1, lambda: one.note("version 1"))
    one.network.broadcast("u", 3, 2, lambda: one.note("other"))
    one.network.pull("u", 3, 4, lambda: one.note("pull of 3"))
    one.network.pull("u", 5, 5, lambda: one.note("pull of 5"))
    one.run()
    assert [what for what, _ in one.heard] == ["pull of 5", "version 1", "other", "pull of 3"]


def test_an_answer_ends_unfinished_once_the_unit_hears_that_it_is_over() -> None:
    one = Heard(Path(bandwidth=1e6, latency=0.25))
    one.network.answer("u", 0, 1, lambda: one.note("over"))
    one.network.answer("u", 1, 2, lambda: one.note("not over"))
    one.network.pull("u", 2, 4, lambda: one.note("pull"))  # with tau = 2 the exchange of step 1 is over by step 4
    one.run()
    # 0.25 s of the first answer have gone by then, and 0.1 s have left; the second takes a second more.
    assert one.heard == [("pull", 0.25), ("not over", pytest.approx(0.25 + 0.1 + 1.0 + 0.25))]
    assert one.network.up_bits == pytest.approx(1.35e6)


def test_nothing_passes_what_was_sent_before_it() -> None:
    one = Heard(Path(latency=0.1, loss=0.5))
    for number in range(40):
        one.network.tell_syncer("u", partial(one.note, f"{number}"))
    one.run()
    assert [what for what, _ in one.heard] == [f"{number}" for number in range(40)]
    assert len({at for _, at in one.heard}) > 1, "some were lost"


def test_what_is_under_way_when_a_process_ends_is_lost_and_the_syncer_hears_of_the_end() -> None:
    one = Heard(Path(latency=0.25))
    one.network.tell_syncer("u", lambda: one.note("report"))
    one.network.broadcast("u", 0, 1, lambda: one.note("broadcast"))
    one.network.left("u", lambda: one.note("gone"))
    one.network.connect("u", Path(latency=0.25))
    one.network.tell_syncer("u", lambda: one.note("is back"))
    one.run()
    assert one.heard == [("gone", 0.25), ("is back", 0.25)]
    one.network.left("u", lambda: None)
    one.network.broadcast("u", 0, 1, lambda: one.note("to nobody"))
    one.network.tell_unit("u", lambda: one.note("to nobody"))
    one.run()
    assert one.heard[2:] == []
