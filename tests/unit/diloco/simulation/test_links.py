"""Links, and jobs whose fragments go over them. Expected times are bits over the share of a stream."""

import math

import pytest
from diloco.contract import Checkpoint, Training
from diloco.simulation.failures import ReturnDelay
from diloco.simulation.job import SimulatedJob
from diloco.simulation.link import Link
from diloco.simulation.network import Bandwidth
from diloco.simulation.timeline import Timeline
from diloco.simulation.unit import Hardware
from numpy.random import default_rng


class Sent:
    """A link, and what has arrived when."""

    def __init__(self, total: float = math.inf, each: float = math.inf) -> None:
        self.timeline = Timeline()
        self.link = Link(self.timeline, total, each)
        self.arrived: dict[str, float] = {}

    def send(self, stream: str, name: str, bits: float, *, newest_first: bool = False) -> None:
        self.link.send(stream, name, bits, lambda: self.note(name), newest_first=newest_first)

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
    sent = Sent(total=100.0, each=5.0)
    sent.send("a", "one", 10.0)
    sent.send("b", "other", 20.0)
    sent.run()
    assert sent.arrived == {"one": pytest.approx(2.0), "other": pytest.approx(4.0)}


def test_what_waits_in_a_stream_goes_in_order_or_the_newest_first() -> None:
    sent = Sent(each=1.0)
    for name in ("first", "second", "third"):
        sent.send("a", name, 1.0)
    for name in ("under way", "old", "new"):
        sent.send("b", name, 1.0, newest_first=True)
    sent.run()
    assert list(sent.arrived) == ["first", "under way", "second", "new", "third", "old"]


def test_what_is_dropped_makes_room_at_once() -> None:
    sent = Sent(total=1.0)
    sent.send("a", "dropped", 10.0)
    sent.send("a", "next", 2.0)
    sent.run(until=4.0)
    sent.link.drop("a", "dropped")
    sent.link.drop("a", "never sent")
    sent.run()
    assert sent.arrived == {"next": pytest.approx(6.0)}


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


def test_only_what_waits_is_replaced() -> None:
    sent = Sent(total=1.0)
    sent.send("a", "p", 3.0)
    assert not sent.link.replace_waiting("a", "p", lambda: sent.note("too late"), 1.0)
    assert not sent.link.replace_waiting("b", "p", lambda: sent.note("no stream"), 1.0)
    sent.send("a", "q", 3.0)
    assert sent.link.replace_waiting("a", "q", lambda: sent.note("newer"), 1.0)
    sent.run()
    assert sent.arrived == {"p": pytest.approx(3.0), "newer": pytest.approx(4.0)}


def test_a_link_without_a_limit_costs_no_time() -> None:
    sent = Sent()
    sent.send("a", "one", 1.0)
    sent.send("a", "two", 1.0)
    sent.run()
    assert sent.arrived == {"one": 0.0, "two": 0.0}


def contributions(link: float) -> float:
    """Per merge, of four units with steps of 1 s, whose own links carry `link` fragments a step in each direction."""
    hardware = Hardware(1, 1, math.inf, 1.0, 0.0, 0.0, ReturnDelay(1.0, 1.0, 1.0))
    training = Training(steps=10**9, sync_interval=8, fragments=8, checkpoint=Checkpoint(every_steps=10**9))
    bandwidth = Bandwidth(fragment_bits=1.0, whole_bits=1.0, unit=link)
    return SimulatedJob(training, [hardware] * 4, default_rng(1), bandwidth=bandwidth).run(400.0).contributions


@pytest.mark.slow
def test_a_link_that_carries_a_fragment_a_step_brings_all_answers_into_merges_and_a_slower_one_its_share() -> None:
    assert contributions(1.05) == pytest.approx(4.0, abs=0.05)
    assert contributions(0.6) < 0.75 * 4


@pytest.mark.slow
def test_a_unit_that_joins_trains_once_it_has_its_copy() -> None:
    hardware = Hardware(1, 1, math.inf, 1.0, 0.0, 0.0, ReturnDelay(1.0, 1.0, 1.0))
    training = Training(steps=10**9, sync_interval=8, fragments=8, checkpoint=Checkpoint(every_steps=10**9))
    job = SimulatedJob(training, [hardware], default_rng(1), bandwidth=Bandwidth(1.0, 2.0, unit=4.0))
    job.run(20.0)
    # The first unit begins within its first step, and then gets 8 whole values of 2, at 4 a second.
    joined = job.units["u0"].joined_at
    assert joined is not None
    assert 4.0 <= joined <= 5.0
