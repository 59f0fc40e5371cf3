"""What the leader and the other ranks of a unit say to each other, as messages and as data. Pure.

An incarnation of the syncer is a number inside a process (`Incarnations`), and its name on the wire.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from diloco.algorithm.pieces import Piece
from diloco.contract import Exit
from diloco.learner.push_header import PushCounts
from diloco.ranks import orders, ranks_pb2
from diloco.ranks.orders import Action, Order
from diloco.ranks.samples import Ranges

type Name = Callable[[int], bytes]
type Number = Callable[[bytes], int]


class MessageError(ValueError):
    """The other end said what cannot be. The message says what."""


def version_to_wire(version: orders.Version, name: Name) -> ranks_pb2.Version:
    """Return a version for the wire."""
    return ranks_pb2.Version(incarnation=name(version.epoch), t=version.t)


def version_from_wire(version: ranks_pb2.Version, number: Number) -> orders.Version:
    """Return a version from the wire."""
    return orders.Version(number(version.incarnation), version.t)


def order_to_wire(order: Order, name: Name) -> ranks_pb2.Order:
    """Return an order for the wire."""
    message = ranks_pb2.Order(step=order.step)
    match order.action:
        case orders.Adopt(fragment, version):
            message.adopt.CopyFrom(ranks_pb2.Adopt(fragment=fragment, version=version_to_wire(version, name)))
        case orders.ReadOut(fragment, t, epoch):
            message.read_out.CopyFrom(ranks_pb2.ReadOut(fragment=fragment, t=t, incarnation=name(epoch)))
        case orders.Seed(epoch):
            message.seed.CopyFrom(ranks_pb2.Seed(incarnation=name(epoch)))
        case orders.Begin():
            message.begin.SetInParent()
        case orders.Finish(t):
            message.finish.CopyFrom(ranks_pb2.Finish(t=t))
        case orders.Drain():
            message.drain.SetInParent()
        case orders.Quit(status, text):
            message.quit.CopyFrom(ranks_pb2.Quit(status=int(status), message=text))
        case orders.TakeState(copy, taken):
            message.take_state.CopyFrom(ranks_pb2.TakeState(copy=copy, fragments=taken))
        case orders.Release(t, steps):
            message.release.CopyFrom(ranks_pb2.Release(t=t, steps=steps))
    return message


def order_from_wire(message: ranks_pb2.Order, number: Number, fragments: int) -> Order:
    """Return an order from the wire, for a model of so many fragments. Raises MessageError."""
    return Order(message.step, _action(message, number, fragments))


def _action(message: ranks_pb2.Order, number: Number, fragments: int) -> Action:
    match message.WhichOneof("action"):
        case "adopt":
            return orders.Adopt(checked(message.adopt.fragment, fragments), version_from_wire(message.adopt.version, number))
        case "read_out":
            read = message.read_out
            return orders.ReadOut(checked(read.fragment, fragments), read.t, number(read.incarnation))
        case "seed":
            return orders.Seed(number(message.seed.incarnation))
        case "begin":
            return orders.Begin()
        case "finish":
            return orders.Finish(message.finish.t)
        case "drain":
            return orders.Drain()
        case "quit":
            return orders.Quit(Exit(message.quit.status), message.quit.message)
        case "take_state":
            return orders.TakeState(message.take_state.copy, tuple(checked(one, fragments) for one in message.take_state.fragments))
        case "release":
            return orders.Release(message.release.t, message.release.steps)
        case _:
            raise MessageError("an order that this version does not know: all ranks of a unit must run the same version")


def checked(fragment: int, fragments: int) -> int:
    """Return the number of a fragment. Raises MessageError for one that the model does not have."""
    if fragment >= fragments:
        raise MessageError(f"a message about fragment {fragment} of {fragments}")
    return fragment


def deal_to_wire(samples: Ranges, taken: int) -> ranks_pb2.Deal:
    """Return a batch of the unit for the wire. `taken`: batches that the leader has taken."""
    return ranks_pb2.Deal(ranges=[ranks_pb2.Range(start=start, end=end) for start, end in samples], taken=taken)


def deal_from_wire(deal: ranks_pb2.Deal) -> Ranges:
    """Return a batch of the unit from the wire."""
    return tuple((one.start, one.end) for one in deal.ranges)


def counted_to_wire(counted: PushCounts) -> ranks_pb2.Counted:
    """Return the counters of a push for the wire."""
    return ranks_pb2.Counted(
        fragment=counted.fragment,
        t=counted.t,
        steps=counted.steps,
        tokens=counted.tokens,
        samples_done=counted.samples_done,
        tokens_done=counted.tokens_done,
        steps_done=counted.steps_done,
    )


def counted_from_wire(counted: ranks_pb2.Counted, fragments: int) -> PushCounts:
    """Return the counters of a push from the wire. Raises MessageError."""
    return PushCounts(
        checked(counted.fragment, fragments),
        counted.t,
        counted.steps,
        counted.tokens,
        counted.samples_done,
        counted.tokens_done,
        counted.steps_done,
    )


def pieces_to_wire(pieces: Iterable[Piece]) -> ranks_pb2.Pieces:
    """Return pieces for the wire."""
    return ranks_pb2.Pieces(pieces=[ranks_pb2.Piece(tensor=piece.tensor, start=piece.start, size=piece.size) for piece in pieces])


def pieces_from_wire(pieces: ranks_pb2.Pieces) -> list[Piece]:
    """Return pieces as they are: `pieces.check_cover` checks them."""
    return [Piece(piece.tensor, tuple(piece.start), tuple(piece.size)) for piece in pieces.pieces]
