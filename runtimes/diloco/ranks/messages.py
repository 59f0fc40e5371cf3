"""What the leader and the other ranks of a unit say to each other, as messages and as data. Pure.

Inside a process an incarnation of the syncer is a number (`Incarnations`), on the wire it is the name.

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
    """The other end has sent a message that cannot be true. The text says why."""


def version_to_wire(version: orders.Version, name: Name) -> ranks_pb2.Version:
    return ranks_pb2.Version(incarnation=name(version.epoch), t=version.t)


def version_from_wire(version: ranks_pb2.Version, number: Number) -> orders.Version:
    return orders.Version(number(version.incarnation), version.t)


def order_to_wire(order: Order, name: Name) -> ranks_pb2.Order:
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
    """Read an order. `fragments`: how many the model has. Raises MessageError."""
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
            return orders.TakeState(
                message.take_state.copy, tuple(checked(fragment, fragments) for fragment in message.take_state.fragments)
            )
        case "release":
            return orders.Release(message.release.t, message.release.steps)
        case _:
            raise MessageError("an order that this version does not know: all ranks of a unit must run the same version")


def checked(fragment: int, fragments: int) -> int:
    """Return `fragment`. Raises MessageError if the model, which has `fragments`, does not have it."""
    if fragment >= fragments:
        raise MessageError(f"a message about fragment {fragment} of {fragments}")
    return fragment


def deal_to_wire(samples: Ranges, taken: int) -> ranks_pb2.Deal:
    """Return the message for a batch of the unit. `taken`: batches that the leader has taken."""
    return ranks_pb2.Deal(ranges=[ranks_pb2.Range(start=start, end=end) for start, end in samples], taken=taken)


def deal_from_wire(deal: ranks_pb2.Deal) -> Ranges:
    return tuple((numbers.start, numbers.end) for numbers in deal.ranges)


def counted_to_wire(counted: PushCounts) -> ranks_pb2.Counted:
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
    """Raises MessageError for a fragment that the model does not have."""
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
    return ranks_pb2.Pieces(pieces=[ranks_pb2.Piece(tensor=piece.tensor, start=piece.start, size=piece.size) for piece in pieces])


def pieces_from_wire(pieces: ranks_pb2.Pieces) -> list[Piece]:
    """Return the pieces unchecked: `pieces.check_cover` checks them."""
    return [Piece(piece.tensor, tuple(piece.start), tuple(piece.size)) for piece in pieces.pieces]
