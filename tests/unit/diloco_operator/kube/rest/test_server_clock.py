"""The operator uses the API server's time, whatever its own machine's clock says."""

from __future__ import annotations

import logging
from email.utils import formatdate
from pathlib import Path

import pytest
from aiohttp import web
from builders.http_server import serving
from diloco_operator.kube.client import Resource
from diloco_operator.kube.rest import RestClient, ServerClock, load_config

PODS = Resource("", "v1", "Pod", "pods")
TEN_MINUTES = 600.0


class Machine:
    """A clock that is `skew` ahead of the server's; `time` is the server's."""

    def __init__(self, skew: float) -> None:
        self.time = 1_763_672_400.25
        self.skew = skew
        self.clock = ServerClock(lambda: self.time + self.skew)

    def answered(self, *, there: float = 0.01, back: float = 0.01) -> None:
        """A request that takes so long to the server, and its answer back."""
        asked = self.clock.local()
        self.time += there
        date = formatdate(int(self.time), usegmt=True)
        self.time += back
        self.clock.note(date, asked)

    @property
    def error(self) -> float:
        return self.clock.now() - self.time


@pytest.mark.parametrize("skew", [-TEN_MINUTES, TEN_MINUTES])
def test_wrong_clock_is_corrected_by_the_first_answer(skew: float) -> None:
    machine = Machine(skew)
    machine.answered()
    assert abs(machine.error) <= 1  # the Date has whole seconds
    before = machine.error
    for _ in range(200):
        machine.time += 0.37
        machine.answered()
    assert machine.error == pytest.approx(before, abs=1e-6)  # and does not jitter


def test_replicas_on_machines_with_different_clocks_count_the_same_time() -> None:
    """One replica records the end of a job, and another counts the job's time to live from it."""
    fast, slow = Machine(TEN_MINUTES), Machine(-TEN_MINUTES)
    fast.answered()
    slow.answered()
    ended = fast.clock.now()
    slow.time = fast.time + 60
    slow.answered()
    assert abs(slow.clock.now() - ended - 60) <= 2  # a second of each for the Date


@pytest.mark.parametrize("skew", [-1.5, 0.0, 1.5])
def test_clock_that_is_nearly_right_is_left_alone(skew: float) -> None:
    machine = Machine(skew)
    for _ in range(20):
        machine.time += 0.37
        machine.answered()
    assert machine.error == pytest.approx(skew, abs=1e-6)


@pytest.mark.parametrize(("there", "back"), [(30.0, 0.0), (0.0, 30.0)])
def test_slow_answers_do_not_move_it(there: float, back: float) -> None:
    machine = Machine(0.0)
    machine.answered(there=there, back=back)
    assert machine.error == 0


def test_corrected_machine_clock_is_followed(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(TEN_MINUTES)
    with caplog.at_level(logging.WARNING):
        machine.answered()
        machine.skew = 0.0
        machine.answered()
        machine.answered()
    assert machine.error == 0
    [warning] = caplog.messages
    assert "ahead of the API server's" in warning


def test_what_is_no_date_is_ignored() -> None:
    machine = Machine(0.0)
    for text in ("yesterday", "", "Fri, 99 Foo 2026 12:00:00 GMT"):
        machine.clock.note(text, machine.clock.local())
    assert machine.error == 0


async def test_date_of_every_answer_is_handed_on(tmp_path: Path) -> None:
    found: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"metadata": {}}, headers={"Date": "Fri, 20 Nov 2026 12:00:00 GMT"})

    async with serving(answer) as server:
        config = load_config(server.kubeconfig(tmp_path))
        async with RestClient.connect(config, on_date=lambda date, asked: found.append(date)) as client:
            await client.get(PODS, "ns", "a")
    assert found == ["Fri, 20 Nov 2026 12:00:00 GMT"]
