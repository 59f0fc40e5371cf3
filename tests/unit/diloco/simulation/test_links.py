"""Links, and jobs whose fragments go over them. Expected times are bits over the share of a stream."""

import math

import pytest
from diloco.contract import Checkpoint, Training
from diloco.goodput import Use
from diloco.simulation.job import Outcome, SimulatedJob
from diloco.simulation.link import Link, shares
from diloco.simulation.network import Sizes
from diloco.simulation.path import Path
from diloco.simulation.timeline import Timeline
from diloco.simulation.unit import Hardware
from numpy.random import default_rng


class Sent:
    """A link, and what has arrived when."""

    def __init__(self, total: float = math.inf, **most: float) -> None:
        """`most`: stream -> its bits a second at most."""
        self.timeline = Timeline()
        self.link = Link(self.timeline, total)
        for stream, rate in most.items():
            self.link.limit(stream, rate)
        self.arrived: dict[str, float] = {}

    def send(self, stream: str, name: str, bits: float) -> None:
        self.link.send(stream, bits, lambda: self.note(name))

    def note(self, name: str) -> None:
        self.arrived[name] = self.timeline.now

    def run(self, until: float = math.inf) -> None:
        while self.timeline.next_at <= until and not math.isinf(self.timeline.next_at):
            self.timeline.step()
        if not math.isinf(until):
            self.timeline.move_to(until)


def test_streams_share_a_link_evenly_and_one_that_is_alone_has_it_all() -> None:
    sent = Sent(total=10.0)
    sent.send("a", "small", 10.0)
    sent.send("b", "large", 30.0)
    sent.run()
    # 5 bits a second each until second 2; then 20 bits are left, at 10 a second.
    assert sent.arrived == {"small": pytest.approx(2.0), "large": pytest.approx(4.0)}


def test_a_stream_has_at_most_its_own_link() -> None:
    sent = Sent(total=100.0, a=5.0, b=5.0)
    sent.send("a", "one", 10.0)
    sent.send("b", "other", 20.0)
    sent.run()
    assert sent.arrived == {"one": pytest.approx(2.0), "other": pytest.approx(4.0)}


def test_what_a_stream_cannot_use_the_others_have() -> None:
    assert shares(12.0, {"a": 1.0, "b": 3.0, "c": 50.0, "d": 40.0}) == {"a": 1.0, "b": 3.0, "c": 4.0, "d": 4.0}
    assert shares(math.inf, {"a": 1.0, "b": 3.0}) == {"a": 1.0, "b": 3.0}
    sent = Sent(total=10.0, a=2.0)
    sent.send("a", "narrow", 8.0)
    sent.send("b", "wide", 16.0)
    sent.run()
    # 2 and 8 bits a second until second 2; what is narrow gets no faster afterwards.
    assert sent.arrived == {"wide": pytest.approx(2.0), "narrow": pytest.approx(4.0)}


def test_a_link_knows_what_went_over_it_also_of_what_was_dropped() -> None:
    sent = Sent(total=1.0)
    sent.send("a", "dropped", 10.0)
    sent.run(until=4.0)
    sent.link.close("a")
    assert sent.link.bits == pytest.approx(4.0)
    sent.send("a", "whole", 3.0)
    sent.run()
    assert sent.link.bits == pytest.approx(7.0)


def test_what_is_cut_short_sends_what_has_left_the_sender_and_no_more() -> None:
    # 64 KiB, 524,288 bits, is the least that a sender has under way; at this rate it is more than what passes in 100 ms.
    rate = 1_000_000.0
    sent = Sent(total=rate)
    sent.send("a", "dropped", 10 * rate)
    sent.run(until=4.0)
    sent.link.cut_short("a", Path(rate), lambda: sent.note("rest"))
    sent.run()
    assert sent.arrived == {"rest": pytest.approx(4.0 + 0.524288)}
    assert sent.link.bits == pytest.approx(4 * rate + 524_288)


def test_a_word_waits_behind_what_has_left_the_sender() -> None:
    rate = 10_000_000.0
    sent = Sent(total=rate)
    path = Path(rate, latency=0.02)
    assert sent.link.queue_seconds("a", path, more=True) == 0.0
    sent.send("a", "long", rate)
    # A window of a round trip and 100 ms at this rate: the 40 ms are on the way, so 100 ms are in the queue.
    assert sent.link.queue_seconds("a", path, more=False) == pytest.approx(0.1)
    sent.run(until=0.95)
    assert sent.link.queue_seconds("a", path, more=False) == pytest.approx(0.05)
    assert sent.link.queue_seconds("a", path, more=True) == pytest.approx(0.1)


def test_a_unit_beside_the_syncer_takes_nothing_of_its_link() -> None:
    sent = Sent(total=1.0)
    sent.link.limit("a", math.inf, local=True)
    sent.send("b", "far", 3.0)
    sent.send("a", "near", 100.0)
    sent.run()
    assert sent.arrived == {"near": 0.0, "far": pytest.approx(3.0)}


def test_a_closed_stream_sends_nothing_more() -> None:
    sent = Sent(total=2.0)
    sent.send("a", "lost", 10.0)
    sent.send("b", "kept", 10.0)
    sent.run(until=4.0)
    sent.link.close("a")
    sent.link.close("a")
    sent.run()
    # 4 of 10 bits by second 4, the others at 2 a second.
    assert sent.arrived == {"kept": pytest.approx(7.0)}


def test_a_link_without_a_limit_costs_no_time() -> None:
    sent = Sent()
    sent.send("a", "one", 1.0)
    sent.send("a", "two", 1.0)
    sent.run()
    assert sent.arrived == {"one": 0.0, "two": 0.0}


def unit(path: Path, step_seconds: float = 1.0) -> Hardware:
    """It never fails."""
    return Hardware(step_seconds=step_seconds, path=path)


TRAINING = Training(steps=10**9, sync_interval=8, fragments=8, checkpoint=Checkpoint(every_steps=10**9))


def outcome(path: Path, sizes: Sizes) -> Outcome:
    """Simulate four units with steps of 1 s, over 400 s."""
    return SimulatedJob(TRAINING, [unit(path)] * 4, default_rng(1), sizes=sizes).run(400.0)


@pytest.mark.slow
def test_a_link_that_carries_a_fragment_a_step_brings_all_answers_into_merges_and_a_slower_one_its_share() -> None:
    fragments = Sizes(fragment=1e8, whole=2e8)
    enough, slow = outcome(Path(bandwidth=1.05e8), fragments), outcome(Path(bandwidth=0.6e8), fragments)
    assert enough.contributions == pytest.approx(4.0, abs=0.05)
    assert slow.merged < 0.8 * enough.merged


@pytest.mark.slow
def test_a_unit_that_joins_trains_once_it_has_its_copy() -> None:
    job = SimulatedJob(TRAINING, [unit(Path(bandwidth=4.0))], default_rng(1), sizes=Sizes(1.0, 2.0))
    job.run(20.0)
    # The first unit begins within its first step, and then gets 8 whole values of 2, at 4 a second.
    joined = job.units["u0"].joined_at
    assert joined is not None
    assert 4.0 <= joined <= 5.0


@pytest.mark.slow
def test_far_units_join_a_round_trip_later_and_merge_all_as_long_as_that_fits_into_the_overlap() -> None:
    job = SimulatedJob(TRAINING, [unit(Path(latency=0.2))], default_rng(1))
    job.run(3.0)
    joined, near = job.units["u0"].joined_at, SimulatedJob(TRAINING, [unit(Path())], default_rng(1))
    near.run(3.0)
    at_once = near.units["u0"].joined_at
    assert joined is not None
    assert at_once is not None
    assert joined == pytest.approx(at_once + 0.4), "its request, and the parameters"
    far = outcome(Path(latency=0.2), Sizes())
    assert far.contributions == pytest.approx(4.0, abs=0.05)
    assert far.accounts.share(Use.WAITING) == 0, "latency stops no accelerator"


@pytest.mark.slow
def test_what_is_lost_is_sent_again_and_costs_bytes_and_time_of_the_work() -> None:
    sizes = Sizes(8e6, 16e6)
    clean, lossy = outcome(Path(latency=0.3), sizes), outcome(Path(latency=0.3, loss=3e-4), sizes)
    assert lossy.accounts.by_use[Use.WAITING] == clean.accounts.by_use[Use.WAITING] == 0, "no accelerator stops"
    # A window of 1.054 (0.6 / 3e-4)^0.75 = 315 segments in 0.6 s: 6.1 Mbit/s for answers of 8 Mbit in each step.
    assert clean.contributions == pytest.approx(4.0, abs=0.05)
    assert lossy.merged < 0.85 * clean.merged


@pytest.mark.slow
def test_the_bytes_of_a_job_are_its_answers_broadcasts_and_copies() -> None:
    found = outcome(Path(), Sizes(fragment=100.0, whole=300.0))
    # An answer of each unit in each merge; those of open exchanges are sent as well. A broadcast of each merge to each of four units, and
    # eight whole values to each of these at their beginning.
    assert found.up_bits == pytest.approx(100 * found.contributions * found.merges, abs=100 * 4 * 3)
    assert found.down_bits == pytest.approx(100 * 4 * found.merges + 300 * 8 * 4, abs=100 * 4 * 2)


@pytest.mark.slow
def test_the_same_seed_loses_the_same_segments() -> None:
    path, sizes = Path(latency=0.05, loss=0.02), Sizes(1e5, 2e5)
    assert outcome(path, sizes) == outcome(path, sizes)
