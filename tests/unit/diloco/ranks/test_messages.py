"""What ranks say to each other, on the wire and back."""

from __future__ import annotations

import pytest
from diloco.contract import Exit
from diloco.learner.incarnations import Incarnations
from diloco.learner.push_header import PushCounts
from diloco.ranks import messages, ranks_pb2
from diloco.ranks.orders import Action, Adopt, Begin, Drain, Finish, Order, Quit, ReadOut, Release, Seed, TakeState, Version

ACTIONS: list[Action] = [
    Adopt(1, Version(1, 40)),
    ReadOut(0, 41, 1),
    Seed(0),
    Begin(),
    Finish(100),
    Drain(),
    Quit(Exit.REFUSED_FENCED, "a newer attempt exists"),
    Release(40, 100),
    TakeState(3, (0, 1)),
]


def met(*names: bytes) -> Incarnations:
    incarnations = Incarnations()
    for name in names:
        incarnations.number(name)
    return incarnations


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: type(action).__name__)
def test_an_order_means_the_same_to_a_rank_that_met_the_incarnations_in_another_order(action: Action) -> None:
    leader, follower = met(b"a", b"b"), met(b"b")
    message = messages.order_to_wire(Order(7, action), leader.name)
    arrived = messages.order_from_wire(ranks_pb2.Order.FromString(message.SerializeToString()), follower.number, 2)
    assert arrived.step == 7
    expected = {Adopt(1, Version(1, 40)): Adopt(1, Version(0, 40)), ReadOut(0, 41, 1): ReadOut(0, 41, 0), Seed(0): Seed(1)}
    assert arrived.action == expected.get(action, action), "b is its first, a its second"


def test_a_rank_of_another_version_is_told_so() -> None:
    with pytest.raises(messages.MessageError, match="all ranks of a unit must run the same version"):
        messages.order_from_wire(ranks_pb2.Order(step=1), met().number, 2)


@pytest.mark.parametrize(
    "order", [Adopt(2, Version(0, 1)), ReadOut(2, 1, 0), TakeState(1, (0, 2))], ids=["adopt", "read out", "take a state"]
)
def test_an_order_about_a_fragment_that_the_model_does_not_have_is_an_error(order: Action) -> None:
    message = messages.order_to_wire(Order(1, order), met(b"a").name)
    with pytest.raises(messages.MessageError, match="fragment 2 of 2"):
        messages.order_from_wire(message, met(b"a").number, 2)


def test_batches_and_counters_arrive_as_they_were() -> None:
    assert messages.deal_from_wire(messages.deal_to_wire(((4, 8), (20, 21)), taken=2)) == ((4, 8), (20, 21))
    counted = PushCounts(1, 40, steps=8, tokens=900, samples_done=70, tokens_done=1000, steps_done=9)
    assert messages.counted_from_wire(messages.counted_to_wire(counted), 2) == counted
    with pytest.raises(messages.MessageError, match="fragment 1 of 1"):
        messages.counted_from_wire(messages.counted_to_wire(counted), 1)


def test_an_incarnation_that_was_not_met_has_no_number_until_it_is() -> None:
    incarnations = met(b"a")
    assert (incarnations.known(b"a"), incarnations.known(b"b")) == (0, None)
    assert (incarnations.number(b"b"), incarnations.known(b"b"), incarnations.name(1)) == (1, 1, b"b")
