"""What a member and its connection need from the part that deals with peers. In a job it is `diloco.recovery.peers.PeersOfUnit`.

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
    """What a member does to its model when a copy of a peer's state asks for it."""

    take_parameters: Callable[[], None]
    """Overwrites a torn copy with the syncer's values."""
    overwritten: Callable[[], None]
    """Called when all parameters may have changed."""


class Peers:
    """What a process exchanges with its peers. This base class exchanges nothing, for a process whose inner state is not known.

    `hear` and `message` are called by the connection's threads, the rest by the training thread, which waits in `wait` and `close` only.
    """

    @property
    def address(self) -> str:
        """Where peers take this process's state. Empty if it gives none."""
        return ""

    @property
    def kind(self) -> str:
        """The kind of the inner state. Empty if the process neither gives nor takes any."""
        return ""

    @property
    def awaited(self) -> bool:
        """The state of a peer may still come, and the first step waits for it."""
        return False

    def hear(self, message: Donor | Give | Marker) -> None:
        """Take the syncer's answer about a donor (Donor), the name of a taker (Give), or its request to store the state (Marker)."""

    def message(self) -> Recovery | None:
        """Return how far this process is with taking its state. None if it has not begun, or takes none."""
        return None

    def connect(self, model: Model, tell: Callable[[], None]) -> None:
        """Begin. Called before the first boundary. `tell` is called when `message` has changed."""

    def wait(self, seconds: float) -> None:
        """Wait until there is something to do at the boundary, at most `seconds`."""

    def boundary(self, events: Sequence[InboxEvent], plan: UnitPlan, state: UnitState, step_seconds: float, *, readable: bool) -> None:
        """Do what is due after the plan was carried out."""

    def holds_parameters(self) -> None:
        """Note that the first step comes next."""

    def stepped(self) -> None:
        """Note that a step is done."""

    def close(self) -> None:
        """Give and take nothing more."""
