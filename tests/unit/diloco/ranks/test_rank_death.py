"""Real processes: a rank that is lost ends all others of its unit, with a message that names it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from builders.exchange import Place
from builders.exploration import full
from builders.ports import held_port
from builders.rank_processes import RankProcesses
from builders.severed_link import link_to
from diloco.contract import Exit

pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def messages(place: Place, rank: int) -> list[str]:
    """What the rank said to people."""
    lines = (place.directory / f"rank{rank}.log").read_text().splitlines()
    return [line.removeprefix("diloco: ") for line in lines if line.startswith("diloco: ")]


@pytest.mark.parametrize("lost", [0, full(2)])
def test_a_killed_rank_ends_all_others_while_they_hang(lost: int, place: Place) -> None:
    with RankProcesses(place, 3) as unit:
        unit.meet().tell_all("hang")
        unit.signal(lost, signal.SIGKILL)
        for rank in {0, 1, 2} - {lost}:
            assert unit.end_of(rank) == Exit.RANK_LOST
            [message] = messages(place, rank)
            assert message.startswith(f"rank {lost}{' (the leader)' if lost == 0 else ''} of unit u is lost: the connection")


@pytest.mark.parametrize("lost", [0, full(2)])
def test_a_frozen_rank_ends_all_others_and_itself_once_it_goes_on(lost: int, place: Place) -> None:
    with RankProcesses(place, 3) as unit:
        unit.meet().tell_all("hang")
        unit.signal(lost, signal.SIGSTOP)
        for rank in {0, 1, 2} - {lost}:
            assert unit.end_of(rank) == Exit.RANK_LOST
            [message] = messages(place, rank)
            assert message.startswith(f"rank {lost}")
            assert "is frozen, or cut off" in message
        unit.signal(lost, signal.SIGCONT)
        assert unit.end_of(lost) == Exit.RANK_LOST
        assert len(messages(place, lost)) == 1


def test_ranks_that_speak_while_the_leader_ends_still_hear_who_is_lost(place: Place) -> None:
    with RankProcesses(place, 5) as unit:
        unit.meet()
        unit.tell(0, "hang")
        for rank in (2, 3, 4):
            unit.tell(rank, "talk")
            assert unit.said(rank) == "talks"
        unit.signal(1, signal.SIGKILL)
        for rank in (0, 2, 3, 4):
            assert unit.end_of(rank) == Exit.RANK_LOST
            [message] = messages(place, rank)
            assert message.startswith("rank 1 of unit u is lost: the connection")


def test_a_program_that_raises_ends_as_it_does_and_the_others_say_what_it_raised(place: Place) -> None:
    with RankProcesses(place, 3) as unit:
        unit.meet()
        unit.tell(0, "hang")
        unit.tell(2, "hang")
        unit.tell(1, "raise bad numbers")
        assert unit.end_of(1) == Exit.CRASHED
        assert "ValueError: bad numbers" in (place.directory / "rank1.log").read_text()
        for rank in (0, 2):
            assert unit.end_of(rank) == Exit.RANK_LOST
            assert messages(place, rank) == ["rank 1 of unit u ended: ValueError: bad numbers. This process ends, and with it the unit"]


def test_the_leaders_program_may_raise_too(place: Place) -> None:
    with RankProcesses(place, 2) as unit:
        unit.meet()
        unit.tell(1, "hang")
        unit.tell(0, "raise bad numbers")
        assert unit.end_of(0) == Exit.CRASHED
        assert unit.end_of(1) == Exit.RANK_LOST
        assert messages(place, 1) == [
            "rank 0 (the leader) of unit u ended: ValueError: bad numbers. This process ends, and with it the unit"
        ]


def test_a_program_that_ends_without_closing_its_session_takes_the_unit_with_it(place: Place) -> None:
    with RankProcesses(place, 2) as unit:
        unit.meet()
        unit.tell(0, "hang")
        unit.tell(1, "exit")
        assert unit.end_of(1) == 0
        assert unit.end_of(0) == Exit.RANK_LOST
        [message] = messages(place, 0)
        assert message.startswith("rank 1 of unit u ended: its program ended and had not closed its session")


def test_who_left_orderly_is_missed_by_nobody(place: Place) -> None:
    with RankProcesses(place, 3) as unit:
        unit.meet()
        unit.tell(2, "leave")
        assert unit.said(2) == "left"
        unit.signal(2, signal.SIGKILL)
        assert unit.end_of(2) == -signal.SIGKILL
        unit.tell(0, "hang")
        unit.tell(1, "raise this is the first loss")
        assert unit.end_of(0) == Exit.RANK_LOST
        [message] = messages(place, 0)
        assert "this is the first loss" in message


@pytest.mark.parametrize("left", [0, full(2)])
def test_a_rank_that_left_its_loop_early_is_named_by_those_that_notice_it(left: int, place: Place) -> None:
    with RankProcesses(place, 3) as unit:
        unit.meet()
        unit.tell(left, "leave early")
        assert unit.said(left) == "left"
        unit.signal(left, signal.SIGKILL)
        assert unit.end_of(left) == -signal.SIGKILL
        unit.tell(1, "raise connection closed by peer")
        assert unit.end_of(1) == Exit.RANK_LOST
        assert messages(place, 1)[-1].startswith(f"rank {left}{' (the leader)' if left == 0 else ''} of unit u left its training loop")


@pytest.mark.full
@pytest.mark.parametrize("lost", [0, 2])
def test_ranks_that_wait_in_a_barrier_of_gloo_name_the_one_that_was_killed(lost: int, place: Place) -> None:
    with RankProcesses(place, 3, gloo=True) as unit:
        unit.meet()
        for rank in {0, 1, 2} - {lost}:
            unit.tell(rank, "barrier")
        unit.signal(lost, signal.SIGKILL)
        for rank in {0, 1, 2} - {lost}:
            assert unit.end_of(rank) == Exit.RANK_LOST
            assert messages(place, rank)[-1].startswith(f"rank {lost}")


async def test_a_rank_that_is_cut_off_ends_and_so_do_the_others(place: Place) -> None:
    # The relay needs to know the leader's port, and the ranks the relay's.
    port = held_port()
    async with link_to("127.0.0.1", port) as link:
        with RankProcesses(place, 3, port=port, ports={2: link.port}) as unit:
            await asyncio.to_thread(unit.meet)
            unit.tell_all("hang")
            link.silence()
            for rank in range(3):
                assert await asyncio.to_thread(unit.end_of, rank) == Exit.RANK_LOST
    assert messages(place, 0)[0].startswith("rank 2 of unit u is lost: nothing was heard of it")
    assert messages(place, 1) == messages(place, 0)
    assert messages(place, 2)[0].startswith("rank 0 (the leader) of unit u is lost: nothing")
