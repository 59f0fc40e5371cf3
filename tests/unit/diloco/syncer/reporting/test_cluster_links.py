"""What goes over the link of a cluster, as the syncer measures and reports it."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.exchange import WAIT_TIMEOUT, LocalSyncer, Place, job_file, training, unit_in, until
from builders.scripted_learner import ScriptedLearner
from builders.shardings import rows
from diloco.contract import MOST_PARTS
from diloco.protocol.diloco_pb2 import FromLearner, Link, Report, Taken
from diloco.protocol.window import ACKNOWLEDGED_BYTES
from diloco.syncer.reporting.cluster_links import ClusterLinks, LinkRates, PeakRate

KB = 1000


def of_steady(start: float, seconds: float, each: int, every: float = 0.1) -> PeakRate:
    """`each` bytes come `every` so often, for some seconds."""
    found = PeakRate()
    for number in range(round(seconds / every)):
        found.add(each, start + number * every)
    return found


@pytest.mark.parametrize("start", [100.05, 100.35, 102.85])
def test_a_link_that_was_full_for_more_than_five_seconds_shows_its_rate_whenever_that_began(start: float) -> None:
    # 10 kB every tenth of a second are 100 kB/s. The bins of half a second are not those of the transfer, so it may lack a part of one.
    assert of_steady(start, seconds=30, each=10 * KB).value(start + 30) == 100 * KB
    assert 90 * KB <= of_steady(start, seconds=5, each=10 * KB).value(start + 5) <= 100 * KB


def test_of_a_link_that_was_not_full_for_five_seconds_shows_what_was_used() -> None:
    # Twice 100 kB within a second, six seconds apart: no five seconds have both.
    found = of_steady(100.05, seconds=1, each=10 * KB)
    for number in range(10):
        found.add(10 * KB, 106.05 + number * 0.1)
    assert found.value(108.0) == 100 * KB // 5


def test_what_came_at_once_after_a_process_stood_still_hardly_counts_as_rate() -> None:
    # 100 kB/s, but of the second between 110 and 111 nothing is read before 111.
    found = PeakRate()
    for number in range(300):
        at = 100.05 + number * 0.1
        found.add(10 * KB, 111.0 if 110.0 < at < 111.0 else at)
    assert 100 * KB <= found.value(130.0) <= 120 * KB


def test_the_busiest_time_counts_for_ten_minutes() -> None:
    found = of_steady(100.05, seconds=5, each=10 * KB)
    found.add(5 * KB, 400.0)
    # It is kept for the ten seconds in which it ended, 100 to 110.
    assert found.value(699.9) == 100 * KB
    assert found.value(700.0) == KB
    assert found.value(1000.0) == 0


def test_what_is_kept_of_a_link_does_not_grow() -> None:
    after_ten_minutes, after_a_day = (of_steady(0.0, seconds, each=KB, every=0.25) for seconds in (600, 86400))
    # The same number of numbers, some of them with a byte more.
    assert len(pickle.dumps(after_a_day)) < 1.5 * len(pickle.dumps(after_ten_minutes))


def test_the_streams_of_a_cluster_add_up_and_those_of_others_do_not() -> None:
    links = ClusterLinks()
    for _unit in range(2):
        links.received("tokyo", 150 * KB, 5.0)
        links.sent("tokyo", 25 * KB, 5.0)
    links.received("osaka", 5 * KB, 5.0)
    links.received("", 70 * KB, 5.0)
    assert links.rates(6.0) == {"tokyo": LinkRates(60 * KB, 10 * KB), "osaka": LinkRates(KB, 0)}


@pytest.mark.parametrize("name", ["", "outside/laptop", "x" * 64, "x" * 10**6, "Tokyo", "tokyo\n", "-", "tôkyô"])
def test_a_name_that_no_cluster_has_is_not_measured(name: str) -> None:
    links = ClusterLinks()
    links.received(name, 5 * KB, 1.0)
    assert links.rates(1.0) == {}


def test_a_learner_that_says_a_new_cluster_each_time_fills_no_memory_and_makes_room_after_ten_minutes() -> None:
    links = ClusterLinks()
    for number in range(10_000):
        links.received(f"made-up-{number}", KB, 1.0)
    assert list(links.rates(2.0)) == [f"made-up-{number}" for number in range(MOST_PARTS)]
    links.received("made-up-0", KB, 300.0)
    links.received("tokyo", KB, 700.0)
    assert set(links.rates(700.0)) == {"made-up-0", "tokyo"}


# --- over real streams ----------------------------------------------------------------------------------------------------
def a_place(folder: Path) -> Place:
    return Place(folder, job_file(training(1000, sync_interval=1, fragments=1, overlap_steps=0, compression="None")))


def reported(syncer: LocalSyncer, condition: Callable[[Report], Any], what: str) -> Report:
    """The first report that fulfils `condition`."""

    def look() -> Report | None:
        report = syncer.report()
        return report if condition(report) else None

    report: Report = until(look, what)
    return report


def link_to(cluster: str, report: Report) -> Link:
    return next((link for link in report.links if link.cluster == cluster), Link())


def test_all_ranks_of_a_unit_count_for_the_link_of_its_cluster_and_no_unit_at_home(tmp_path: Path) -> None:
    with (
        LocalSyncer(a_place(tmp_path)) as syncer,
        ScriptedLearner(syncer, unit="far-0", sharding=rows(2)) as far,
        ScriptedLearner(syncer, unit="home-0") as home,
    ):
        far.welcomed(cluster="tokyo")
        far.welcomed_rank(1)  # it names no cluster: it is in its leader's
        of_rank_1 = 4 * far.portions[1][0].size
        far.seed(ranks=[1])
        report = reported(syncer, lambda report: report.links, "the follower's part of the seed")
        assert link_to("tokyo", report) == Link(cluster="tokyo", received_bytes_per_second=of_rank_1 // 5), "it came as one chunk"
        far.seed(ranks=[0])
        home.join().step(1)
        home.push(home.pulled())
        whole = 4 * home.fragments[0].size
        report = reported(syncer, lambda report: unit_in(report, "home-0").received_bytes == whole, "home's contribution")
        assert [link.cluster for link in report.links] == ["tokyo"]
        assert link_to("tokyo", report).received_bytes_per_second <= whole // 5, "the seed alone"
        assert link_to("tokyo", report).sent_bytes_per_second == 0, "it acknowledges nothing, so nothing is known to have arrived"


def test_what_a_learner_acknowledges_counts_as_arrived_and_tells_the_round_trip(tmp_path: Path) -> None:
    arrays = {"w0": np.zeros((64, 128), np.float32)}  # 32 KiB: the first 16 KiB of a broadcast measure the round trip
    with (
        LocalSyncer(a_place(tmp_path)) as syncer,
        ScriptedLearner(syncer, arrays, unit="home-0") as home,
        ScriptedLearner(syncer, arrays, unit="far-0") as far,
    ):
        home.join().seed()
        before = time.monotonic()
        far.welcomed(cluster="tokyo", acknowledges=True)
        sizes = [len(far.hear("chunk").chunk.data)]
        assert sizes == [ACKNOWLEDGED_BYTES]
        assert syncer.unit("far-0").round_trip_seconds == 0.0
        assert not syncer.report().links
        far.say(FromLearner(taken=Taken(bytes=ACKNOWLEDGED_BYTES)))
        report = reported(syncer, lambda report: link_to("tokyo", report).sent_bytes_per_second, "the acknowledgement")
        assert link_to("tokyo", report) == Link(cluster="tokyo", sent_bytes_per_second=ACKNOWLEDGED_BYTES // 5)
        assert 0.0 < syncer.unit("far-0").round_trip_seconds < time.monotonic() - before < WAIT_TIMEOUT
        assert syncer.unit("home-0").round_trip_seconds == 0.0
        far.cut()
        reported(syncer, lambda report: not any(unit.round_trip_seconds for unit in report.units), "the end of the stream")
