"""What a member and its connection want of the part that deals with peers: `diloco.recovery.peers.PeersOfUnit` in a job.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diloco.learner.inbox import InboxEvent
from diloco.learner.unit_plan import UnitPlan, UnitState
from diloco.protocol.diloco_pb2 import Donor, Give, Marker, Recovery


@dataclass(frozen=True, slots=True)
class Model:
    """What a copy of a peer's state changes of a member's."""

    take_parameters: Callable[[], None]
    """Put the syncer's values back in the place of a part of a copy."""
    overwritten: Callable[[], None]
    """All parameters may have changed."""


class Peers:
    """A process's dealings with its peers: none, as of a process whose state beside the parameters is not known.

    `hear` and `message` are called by the connection's threads, the rest by the training thread, which waits in `wait` and `close` only.
    """

    @property
    def address(self) -> str:
        """Where peers take this process's state; "": nowhere."""
        return ""

    @property
    def kind(self) -> str:
        """Return the kind of the state beside the parameters; "": it neither gives nor takes any."""
        return ""

    @property
    def awaited(self) -> bool:
        """State of a peer may come yet: the first step waits for it."""
        return False

    def hear(self, message: Donor | Give | Marker) -> None:
        """Note what the syncer says of this process's state: who gives it one, or that there is none; who may take it; that it is wanted
        for a snapshot."""

    def message(self) -> Recovery | None:
        """Return how far this process is with its own state; None: it has not begun, or takes none."""
        return None

    def connect(self, model: Model, tell: Callable[[], None]) -> None:
        """Begin, before the first boundary. `tell`: `message` has changed."""

    def wait(self, seconds: float) -> None:
        """Wait until there is something to do at the boundary, at most so long."""

    def boundary(self, events: Sequence[InboxEvent], plan: UnitPlan, state: UnitState, step_seconds: float, *, readable: bool) -> None:
        """Do what is due after the plan was carried out."""

    def holds_parameters(self) -> None:
        """Note that the first step comes next."""

    def stepped(self) -> None:
        """Note that a step is done."""

    def close(self) -> None:
        """Give and take nothing more."""
