"""A donor's end: whom it gives to, when it stages, and how much."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import grpc
import numpy as np
import pytest
from builders.exchange import JOB_UID, weights
from builders.momentum_learner import MomentumState
from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Piece, wholes
from diloco.contract import learner_identity
from diloco.learner import staged_parts
from diloco.learner.arrays import ArrayStore
from diloco.learner.inbox import InboxEvent, Received, Welcomed
from diloco.learner.staged_parts import NothingComes
from diloco.learner.store import Ready
from diloco.learner.unit_plan import Adoption, UnitPlan
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import Give, PieceMap, StateMessage, StateWanted
from diloco.protocol.diloco_pb2 import Piece as PieceMessage
from diloco.protocol.state_parts import StateError, pieces_from_message, pieces_to_message
from diloco.recovery import state_donor
from diloco.recovery import state_transfer as transfers
from diloco.recovery.adopted_versions import AdoptedVersions
from diloco.recovery.state_donor import StateDonor
from diloco.recovery.state_transfer import Refused, StateTransfer

ME = learner_identity(JOB_UID, "taker", 2)
STEP = 0.1


class Donor:
    """A state_donor with a model of two fragments, at outer step 5, whose clock goes on by 1.1 ms at each look."""

    def __init__(self, arrays: dict[str, np.ndarray] | None = None) -> None:
        self.state = MomentumState(arrays or weights(3.0))
        self.layout = Layout(ArrayStore(self.state.arrays_of_model).specs())
        self.ticks = itertools.count()
        self.epochs = {b"now": 0}
        owned = wholes(self.layout.tensors)
        self.state_donor = StateDonor(
            self.layout, self.state, owned, self.state.stage_rest, JOB_UID, self.epochs.get, lambda: next(self.ticks) / 900
        )
        self.adopted = AdoptedVersions(2)
        self.adopts(5, epoch=0)

    def adopts(self, version: int, epoch: int = 0) -> None:
        ready = Ready((), ())
        events: list[InboxEvent] = [Welcomed(1, version, 1000, False, 0, epoch), *(Received(f, version, ready, epoch) for f in range(2))]
        self.adopted.boundary(events, UnitPlan(0, adoptions=tuple(Adoption(f, version) for f in range(2))))

    def wanted(self, **changes: Any) -> StateWanted:
        usual: dict[str, Any] = {
            "job_uid": JOB_UID,
            "unit": "taker",
            "attempt": 2,
            "grant": b"yes",
            "fingerprint": self.layout.fingerprint,
            "inner_state": "numpy momentum",
            "incarnation": b"now",
            "versions": [5, 5],
        }
        return StateWanted(**(usual | changes))

    def gives(self, **changes: Any) -> StateTransfer:
        if "taker" not in self.state_donor._grants:
            self.state_donor.allow(Give(unit="taker", attempt=2, grant=b"yes"))
        return self.state_donor.begin(self.wanted(**changes), ME)

    def boundary(self, *, readable: bool = True) -> None:
        self.state_donor.at_boundary(self.adopted, STEP, readable=readable)


def refusal(donor: Donor, code: grpc.StatusCode, why: str, identity: str = ME, **changes: Any) -> None:
    with pytest.raises(Refused, match=why) as refused:
        donor.state_donor.begin(donor.wanted(**changes), identity)
    assert refused.value.code is code


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_donor, "GRANT_SECONDS", 0.01)
    monkeypatch.setattr(transfers, "BOUNDARY_SECONDS", 0.04)
    monkeypatch.setattr(transfers, "ALIVE_SECONDS", 0.01)


def test_only_whom_the_syncer_named_gets_the_state() -> None:
    donor = Donor()
    denied = grpc.StatusCode.PERMISSION_DENIED
    refusal(donor, denied, "the syncer has not named attempt 2 of unit taker")
    donor.state_donor.allow(Give(unit="taker", attempt=2, grant=b"yes"))
    refusal(donor, denied, "the syncer has not named", grant=b"guessed")
    refusal(donor, denied, "the syncer has not named attempt 1", identity=learner_identity(JOB_UID, "taker", 1), attempt=1)
    refusal(donor, denied, "its certificate says", identity=learner_identity(JOB_UID, "other", 2))
    refusal(donor, denied, "its certificate says", job_uid="another")
    donor.state_donor.begin(donor.wanted(), ME)
    refusal(donor, denied, "the syncer has not named")  # a grant is good once


def test_a_state_of_another_kind_or_model_is_not_given() -> None:
    donor = Donor()
    donor.state_donor.allow(Give(unit="taker", attempt=2, grant=b"yes"))
    refusal(donor, grpc.StatusCode.FAILED_PRECONDITION, "another kind", inner_state="torch AdamW")
    refusal(donor, grpc.StatusCode.FAILED_PRECONDITION, "another model", fingerprint="x")
    refusal(donor, grpc.StatusCode.UNAVAILABLE, "has not met the syncer", incarnation=b"next")


def test_the_grant_may_come_after_the_taker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_donor, "GRANT_SECONDS", 60.0)
    donor = Donor()
    threading.Timer(0.02, lambda: donor.state_donor.allow(Give(unit="taker", attempt=2, grant=b"yes"))).start()
    assert donor.state_donor.begin(donor.wanted(), ME).receiver == "unit taker"


def test_it_gives_to_one_at_a_time() -> None:
    donor = Donor()
    first = donor.gives()
    donor.state_donor.allow(Give(unit="other", attempt=1, grant=b"too"))
    other = {"unit": "other", "attempt": 1, "grant": b"too"}
    identity = learner_identity(JOB_UID, "other", 1)
    refusal(donor, grpc.StatusCode.UNAVAILABLE, "gives its state to unit taker now", identity=identity, **other)
    first.end()
    donor.state_donor.begin(donor.wanted(**other), identity)


def test_a_grant_that_the_syncer_repeats_on_a_new_stream_is_good_once() -> None:
    donor = Donor()
    donor.gives().end()
    donor.state_donor.allow(Give(unit="taker", attempt=2, grant=b"yes"))
    refusal(donor, grpc.StatusCode.PERMISSION_DENIED, "the syncer has not named")
    donor.state_donor.allow(Give(unit="taker", attempt=2, grant=b"anew"))
    donor.state_donor.begin(donor.wanted(grant=b"anew"), ME)


def piece_map(donor: Donor, *pieces: Piece) -> PieceMap:
    return PieceMap(pieces=pieces_to_message(donor.layout, pieces))


def test_each_rank_of_the_taker_gets_what_it_owns_and_one_of_them_the_small_rest() -> None:
    donor = Donor({"w": np.arange(24, dtype=np.float32).reshape(6, 4)})
    halves = [Piece("w", (0, 0), (3, 4)), Piece("w", (3, 0), (3, 4))]
    transfers = [donor.gives(pieces=piece_map(donor, half), rank=rank, without_rest=rank != 0) for rank, half in enumerate(halves)]
    refusal(donor, grpc.StatusCode.PERMISSION_DENIED, "the syncer has not named", rank=1, without_rest=True)
    for _ in range(2):
        donor.boundary()
    for transfer, half in zip(transfers, halves, strict=True):
        messages = list(transfer.messages())
        parts = [one.part for one in messages if not isinstance(one, DataChunk) and one.WhichOneof("message") == "part"]
        pieces = {piece for part in parts for piece in pieces_from_message(donor.layout, [one.piece for one in part.arrays])}
        assert pieces == {half}
        assert [len(part.arrays) for part in parts] == [2, 0][: 2 if half is halves[0] else 1]
        assert not isinstance(messages[-1], DataChunk)
        assert messages[-1].end.elements == 12


def test_no_rank_of_a_taker_waits_until_another_one_has_all() -> None:
    donor = Donor({"w": np.zeros((64, 1 << 16), np.float32)})  # 16 parts, of which a boundary stages 5
    transfers = [donor.gives(rank=rank, without_rest=True) for rank in range(2)]
    for staged in ((5, 0), (5, 5), (10, 5), (10, 10)):
        donor.boundary()
        assert tuple(transfer.next for transfer in transfers) == staged


def test_a_rank_that_is_not_the_leader_gives_no_small_rest_and_nothing_to_who_wants_all_of_one_process() -> None:
    donor = Donor()
    donor.state_donor.stage_rest = None
    donor.state_donor.allow(Give(unit="taker", attempt=2, grant=b"yes"))
    refused = grpc.StatusCode.FAILED_PRECONDITION
    refusal(donor, refused, "the small rest of a unit's state is given by its leader only")
    donor.state_donor._alone = False
    refusal(donor, refused, "the taker's version knows of no donors of several ranks", without_rest=True)


def test_what_is_no_piece_of_the_model_is_refused() -> None:
    donor = Donor()
    donor.state_donor.allow(Give(unit="taker", attempt=2, grant=b"yes"))
    wrong = PieceMap(pieces=[PieceMessage(tensor=99, start=[0], size=[1])])
    refusal(donor, grpc.StatusCode.INVALID_ARGUMENT, "the peer names tensor 99", pieces=wrong)


def test_it_trains_on_until_it_has_adopted_what_the_taker_holds() -> None:
    donor = Donor()
    transfer = donor.gives(versions=[5, 7])
    donor.boundary()
    assert transfer.next == 0
    donor.adopts(7)
    donor.boundary()
    assert transfer.next == 2  # one part of this small model, and the rest


def test_nothing_is_staged_while_a_step_is_not_counted() -> None:
    donor = Donor()
    transfer = donor.gives()
    donor.boundary(readable=False)
    assert transfer.next == 0


def test_a_boundary_stages_for_a_small_share_of_the_step_and_at_least_one_part() -> None:
    donor = Donor({"w": np.zeros((64, 1 << 16), np.float32)})  # 16 parts
    transfer = donor.gives()
    # The clock goes on by 1.1 ms at each look, and a boundary may take 5 % of 100 ms: the fifth look is at 5.6 ms.
    for boundary, staged in enumerate((5, 10, 15, 17), start=1):
        donor.boundary()
        assert transfer.next == staged, boundary


def test_a_state_that_will_take_long_gets_twice_the_share_of_a_step() -> None:
    donor = Donor({"w": np.zeros((2048, 1 << 16), np.float32)})  # 512 parts
    transfer = donor.gives()
    staged = []
    for _ in range(3):
        before = transfer.next
        # 5 % of a step of 100 ms are five looks at the clock; between two boundaries 100 ms go by.
        donor.boundary()
        staged.append(transfer.next - before)
        for _ in range(90):
            next(donor.ticks)
    # After the first boundary 5 of 512 parts took 0.1 s: all will take 10.6 s.
    assert staged == [5, 10, 10]


def test_no_more_waits_for_the_link_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    part = 2 * 4 * (1 << 18)
    monkeypatch.setattr(staged_parts, "QUEUE_BYTES", 2 * part)
    donor = Donor({"w": np.zeros((64, 1 << 16), np.float32)})
    transfer = donor.gives()
    for _ in range(3):
        donor.boundary()
    assert transfer.next == 2
    taken = transfer.take()
    assert taken is not None
    transfer.taken(taken)
    donor.boundary()
    assert transfer.next == 3


def test_what_may_wait_doubles_as_long_as_the_link_takes_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    part = 2 * 4 * (1 << 18)
    monkeypatch.setattr(staged_parts, "QUEUE_BYTES", part)
    donor = Donor({"w": np.zeros((64, 1 << 16), np.float32)})  # 16 parts, of whose parameters half may wait: 4 parts with their moments
    transfer = donor.gives()
    staged = []
    for _ in range(5):
        before = transfer.next
        donor.boundary()
        staged.append(transfer.next - before)
        while transfer.wait(0):
            taken = transfer.take()
            assert taken is not None
            transfer.taken(taken)
    assert staged == [1, 2, 4, 4, 4]


def test_each_part_is_of_one_boundary_and_says_what_was_adopted_then() -> None:
    donor = Donor()
    transfer = donor.gives()
    donor.boundary()
    donor.adopts(9)
    messages = list(transfer.messages())
    parts = [message.part for message in messages if not isinstance(message, DataChunk) and message.WhichOneof("message") == "part"]
    assert [list(part.versions) for part in parts] == [[5, 5], [5, 5]]
    assert [len(part.arrays) for part in parts] == [8, 0]
    assert not isinstance(messages[-1], DataChunk)
    assert messages[-1].end.parts == 2


def test_a_donor_that_meets_a_restarted_syncer_gives_nothing_of_the_time_before() -> None:
    donor = Donor()
    transfer = donor.gives()
    donor.adopts(3, epoch=1)
    donor.boundary()
    with pytest.raises(NothingComes, match="the syncer has started again"):
        transfer.take()


def test_a_donor_whose_state_cannot_be_read_trains_on() -> None:
    def broken(*_: Any) -> Any:
        raise StateError("the optimizer keeps a riddle")

    donor = Donor()
    donor.state_donor.stage_rest = broken
    transfer = donor.gives()
    donor.boundary()
    with pytest.raises(Refused, match="keeps a riddle"):
        list(transfer.messages())


def test_the_time_for_which_it_waited_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "BOUNDARY_SECONDS", 120.0)
    monkeypatch.setattr(StateTransfer, "wait", lambda *_: False)
    with pytest.raises(Refused, match="no step boundary with news for 120 s"):
        list(Donor().gives(hears_waiting=True).messages())


@pytest.mark.parametrize("hears_waiting", [False, True])
def test_a_donor_that_pauses_for_too_long_lets_the_taker_go(hears_waiting: bool) -> None:
    said: list[StateMessage | DataChunk] = []
    with pytest.raises(Refused, match="reached no step boundary"):
        said.extend(Donor().gives(hears_waiting=hears_waiting).messages())
    assert said == ([StateMessage()] * 4 if hears_waiting else [])


def test_a_donor_with_long_steps_says_that_it_is_there_and_gives_then() -> None:
    donor = Donor()
    messages = donor.gives(hears_waiting=True).messages()
    assert next(messages) == StateMessage()
    donor.boundary()
    rest = list(messages)
    assert not isinstance(rest[-1], DataChunk)
    assert rest[-1].end.parts == 2


def test_a_donor_that_leaves_says_so() -> None:
    donor = Donor()
    transfer = donor.gives()
    donor.state_donor.close()
    with pytest.raises(NothingComes, match="the donor leaves"):
        transfer.take()
    refusal(donor, grpc.StatusCode.PERMISSION_DENIED, "has not named")
