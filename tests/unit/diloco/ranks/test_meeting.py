"""The ranks of a unit meet: who may take part, what they must agree on, and what they learn."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
from builders.exchange import WAIT_TIMEOUT, Place, until
from builders.rank_threads import LAYOUT, Unit
from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Piece, deal
from diloco.contract import Exit
from diloco.learner.leave import Leave
from diloco.protocol.tls import TlsFiles
from diloco.ranks import leader, stream
from diloco.ranks.channel import SideChannel
from diloco.ranks.meeting import absent, disagreement
from diloco.ranks.ranks_pb2 import RankHello, RankWelcome, ToLeader


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def unit(place: Place) -> Iterator[Unit]:
    """Yield a unit of three ranks."""
    yield (made := Unit(place, 3))
    made.leader.left()


def refusal(unit: Unit, hello: RankHello) -> str:
    """What all ranks are told when rank 1 says `hello`."""
    first, second = unit.meets(unit.leader), unit.meets(unit.follower(1), hello)
    errors = [future.exception(WAIT_TIMEOUT) for future in (first, second)]
    assert all(isinstance(error, Leave) for error in errors)
    [message] = {error.message for error in errors if isinstance(error, Leave)}
    [status] = {error.status for error in errors if isinstance(error, Leave)}
    assert status == (Exit.REFUSED_LAYOUT if "make up" in message else Exit.RANK_LOST)
    return message


def test_all_learn_the_session_and_the_leader_who_owns_what(unit: Unit) -> None:
    channels: list[SideChannel[Any]] = [unit.follower(2), unit.follower(1), unit.leader]
    for welcome in [unit.meets(channel) for channel in channels]:
        assert welcome.result(WAIT_TIMEOUT) == RankWelcome(session=b"session"), "no rank needs to know what the others own"
    assert unit.leader.take_owned() == deal(LAYOUT.tensors, 3)


def test_a_leader_that_checks_many_pieces_hears_and_serves_others_meanwhile(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """512 ranks with 700 tensors took more than 4 s, in which no sign of life came of the leader: the others took it for lost."""
    unit = Unit(place, 2)
    served = threading.Event()

    def check(layout: Layout, owned: Sequence[Sequence[Piece]]) -> None:
        say_what_is_no_tls(unit.port)
        served.set()

    monkeypatch.setattr(leader, "check_cover", check)
    welcomes = [unit.meets(channel) for channel in (unit.leader, unit.follower(1))]
    assert [one.result(WAIT_TIMEOUT) for one in welcomes] == [RankWelcome(session=b"session")] * 2
    assert served.is_set()
    unit.leader.left()


def test_a_side_channel_that_fails_ends_its_process_with_the_reason(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the program would wait for ever in the meeting, and after it for a rank whose loss goes unnoticed."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a mistake")

    said = "ends, as its side channel has failed: ZeroDivisionError: a mistake"
    unit = Unit(place, 2)
    alone = unit.follower(1)
    with monkeypatch.context() as patch:
        patch.setattr(alone, "_connect", fail)
        error = unit.meets(alone).exception(WAIT_TIMEOUT)
    assert isinstance(error, Leave)
    assert (error.status, error.message) == (Exit.RANK_LOST, f"rank 1 of unit u {said}")
    welcomes = [unit.meets(channel) for channel in (unit.leader, unit.follower(1))]
    assert [one.result(WAIT_TIMEOUT).session for one in welcomes] == [b"session", b"session"]
    monkeypatch.setattr(unit.leader, "_judge_silence", fail)
    assert unit.ends[0].result() == (Exit.RANK_LOST, f"rank 0 (the leader) of unit u {said}")


@pytest.mark.slow
def test_who_does_not_come_is_named(unit: Unit) -> None:
    first, second = unit.meets(unit.leader), unit.meets(unit.follower(1))
    until(lambda: 1 in unit.leader._hellos, "rank 1 to come")
    unit.leader._deadline = 0.0  # rank 2 has had its time
    for future in (first, second):
        error = future.exception(WAIT_TIMEOUT)
        assert isinstance(error, Leave)
        assert error.status == Exit.RANK_LOST
        assert "unit u waited for rank 2 in vain" in error.message


@pytest.mark.slow
def test_a_leader_that_does_not_come_is_named_with_its_address(place: Place) -> None:
    unit = Unit(place, 2)
    error = unit.meets(unit.follower(1), timeout=0.5).exception(WAIT_TIMEOUT)
    assert isinstance(error, Leave)
    assert error.status == Exit.RANK_LOST
    assert f"found no leader at 127.0.0.1:{unit.port}" in error.message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ranks": 4}, "rank 1 of unit u counts 4 ranks, the leader 3"),
        ({"rank": 7}, "rank 7 of unit u does not exist"),
        ({"rank": 0}, "rank 0 of unit u does not exist"),
        ({"attempt": 2}, "is attempt 2 of unit u"),
        ({"framework": "jax"}, "trains with jax, the leader with numpy"),
        ({"fingerprint": "f"}, "has another model than the leader"),
        ({"data_ranks": 2}, "trains part 1 of 2 of the unit's batch, and the leader cuts it into 3"),
    ],
)
def test_a_rank_that_disagrees_ends_the_unit(unit: Unit, changes: dict[str, int | str], said: str) -> None:
    assert said in refusal(unit, unit.hello(1, **changes))


def test_of_several_tensors_of_different_types_the_first_is_named(unit: Unit) -> None:
    leader, other = unit.hello(0), unit.hello(1)
    for hello, dtype in ((leader, "float32"), (other, "float16")):
        hello.dtypes.update({"b": dtype, "a": dtype})
    said = "rank 1 of unit u keeps tensor 'a' in float16, rank 0 (the leader) in float32 (the first of 2 that differ): give"
    assert said in disagreement(leader, other)


def test_two_processes_cannot_be_one_rank(unit: Unit) -> None:
    first, second = unit.meets(unit.leader), unit.meets(unit.follower(1))
    third = unit.meets(unit.follower(1))
    for future in (first, second, third):
        error = future.exception(WAIT_TIMEOUT)
        assert isinstance(error, Leave)
        assert error.message == "two processes say that they are rank 1 of unit u"


def test_pieces_that_do_not_make_up_the_model_end_the_unit(place: Place) -> None:
    unit = Unit(place, 2)
    assert "no rank owns w[4:5]" in refusal(unit, unit.hello(1, [Piece("w", (5, 0), (3, 4))])), "rank 0 owns rows 0 to 3"


# --- strangers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [None, b"\xff\xff\xff\xff", b"\x00\x00\x00\x03\xff\xff\xff", b"\x00\x00\x00\x00"],
    ids=["no TLS", "huge", "garbage", "empty"],
)
def test_what_is_no_message_of_a_rank_ends_only_its_connection(unit: Unit, message: bytes | None) -> None:
    """Also of a process that has the unit's certificate."""
    meeting = unit.meets(unit.leader)
    if message is None:
        say_what_is_no_tls(unit.port)
    else:
        with connected(unit.port, unit.files) as stranger:
            stranger.sendall(message)
            assert stranger.recv(4096) == b""
    unit.meets(unit.follower(1))
    unit.meets(unit.follower(2))
    assert meeting.result(WAIT_TIMEOUT).session == b"session"


@pytest.mark.slow
def test_ranks_meet_beside_two_hundred_silent_connections_while_more_keep_coming(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_HANDSHAKE_TIMEOUT", 10 * WAIT_TIMEOUT)  # no connection goes by itself
    before = open_descriptors()
    meeting = unit.meets(unit.leader)
    with Silent(unit.port, 200) as silent:
        for rank in (1, 2):
            unit.meets(unit.follower(rank))
        assert meeting.result(WAIT_TIMEOUT).session == b"session"
        silent.come_no_more()
        # 64 beside one for each rank.
        until(lambda: silent.still_open() <= 64 + unit.ranks, "the leader to close the oldest connections")
    unit.leader.left()
    until(lambda: open_descriptors() <= before, "every connection to be closed at both ends")


@pytest.mark.parametrize("who", ["another unit", "another attempt", "another job", "nobody"])
def test_only_this_attempt_of_the_unit_is_let_in(unit: Unit, who: str, tmp_path: Path) -> None:
    certificates = unit.place.certificates
    files = {
        "another unit": certificates.learner("v"),
        "another attempt": certificates.learner("u", 2),
        "another job": Place(tmp_path / "other").certificates.learner("u"),
        "nobody": None,
    }[who]
    unit.meets(unit.leader)
    try:
        with connected(unit.port, files) as stranger:
            hello = ToLeader(hello=unit.hello(1)).SerializeToString()
            stranger.sendall(len(hello).to_bytes(4) + hello)
            assert stranger.recv(1) == b""
    except OSError:
        pass  # the other end broke the connection, which is as good
    assert 1 not in unit.leader._hellos


@pytest.mark.slow
def test_a_follower_does_not_take_a_stranger_for_its_leader(place: Place) -> None:
    stranger = Unit(place, 2, place.certificates.learner("v"))
    follower = stranger.follower(1, place.certificates.learner("u"))
    meeting = stranger.meets(stranger.leader)
    error = stranger.meets(follower, timeout=0.5).exception(WAIT_TIMEOUT)
    assert isinstance(error, Leave)
    assert "learner/v/1, not diloco://" in error.message
    assert not meeting.done()
    stranger.leader.left()


@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_a_rank_whose_certificate_is_refused_comes_in_with_a_renewed_one(
    place: Place, caplog: pytest.LogCaptureFixture, whose: str
) -> None:
    files = TlsFiles(place.certificates.learner("u", 2).folder)
    unit = Unit(place, 2, files if whose == "leader" else None)
    meeting = unit.meets(unit.leader)
    follower = unit.meets(unit.follower(1, files if whose == "follower" else place.certificates.learner("u")))
    if whose == "follower":  # which says nothing of it where it refuses the leader: that may be any program on its port
        until(lambda: "was refused: the other end is" in caplog.text, "the leader to refuse it")
    renewed = place.certificates.learner("u", 1)
    for name in ("identity.pem", "ca.crt"):
        (files.folder / f"{name}.new").write_bytes((renewed.folder / name).read_bytes())
        (files.folder / f"{name}.new").replace(files.folder / name)
    assert meeting.result(WAIT_TIMEOUT) == follower.result(WAIT_TIMEOUT)
    unit.leader.left()


def say_what_is_no_tls(port: int) -> None:
    """Returns once the other end has closed the connection."""
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        stranger.settimeout(WAIT_TIMEOUT)
        while stranger.recv(4096):
            pass


class Silent:
    """Connections whose other end says nothing: `first` of them at once, and one more every 10 ms."""

    def __init__(self, port: int, first: int) -> None:
        self._address = "127.0.0.1", port
        self._open = [socket.create_connection(self._address, WAIT_TIMEOUT) for _ in range(first)]
        self._enough = threading.Event()
        self._coming = threading.Thread(target=self._come)

    def _come(self) -> None:
        while not self._enough.wait(0.01):
            self._open.append(socket.create_connection(self._address, WAIT_TIMEOUT))

    def come_no_more(self) -> None:
        self._enough.set()
        self._coming.join()

    def still_open(self) -> int:
        """Connections that the leader has not closed."""
        return sum(not readable(one) for one in self._open)

    def __enter__(self) -> Self:
        self._coming.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.come_no_more()
        for one in self._open:
            one.close()


def readable(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def connected(port: int, files: TlsFiles | None) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if files is not None:
        context.load_cert_chain(files.identity)
    raw = socket.create_connection(("127.0.0.1", port), WAIT_TIMEOUT)
    return context.wrap_socket(raw)


# --- words --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("present", "said"),
    [
        ({0, 1, 2, 3}, ""),
        ({0, 1, 3}, "rank 2"),
        ({0, 3}, "ranks 1 and 2"),
        ({0}, "ranks 1, 2 and 3"),
    ],
)
def test_absent_ranks_are_named_and_of_many_the_first(present: set[int], said: str) -> None:
    assert absent(4, present) == said
    assert absent(64, {0}) == "ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 53 more"
