"""What a member and its connection want of the part that deals with peers: `diloco.recovery.peers.PeersOfUnit` in a job.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from diloco.learner.inbox import InboxEvent
from diloco.learner.unit_plan import UnitPlan, UnitState
from diloco.protocol.diloco_pb2 import Donor, Give, Marker, Recovery


@dataclass(frozen=True, slots=True)
class Model:
    """What a copy of a peer's state changes of a member's."""

    fragment_of: Mapping[str, int]
    """By name of the tensor."""
    take_parameters: Callable[[], None]
    """Put the syncer's values back in the place of a part of a copy."""
    overwritten: Callable[[], None]
    """All parameters may have changed."""


class Peers(Protocol):
    """A process's dealings with its peers. `donor`, `give`, `marker` and `message` are called by the connection's threads, the rest by the
    training thread, which waits in `wait` and `close` only."""

    @property
    def address(self) -> str:
        """Where peers take this process's state; "": nowhere."""
        ...

    @property
    def kind(self) -> str:
        """Return the kind of the state beside the parameters; "": it neither gives nor takes any."""
        ...

    def donor(self, donor: Donor) -> None:
        """Note the donor that the syncer names, or that there is none."""
        ...

    def give(self, give: Give) -> None:
        """Note who may take this process's state, as the syncer says."""
        ...

    def marker(self, marker: Marker) -> None:
        """Note that this process's state is wanted for a snapshot."""
        ...

    def message(self) -> Recovery | None:
        """How far this process is with its own state; None: it has not begun, or takes none."""
        ...

    def connect(self, model: Model, tell: Callable[[], None]) -> None:
        """Before the first boundary. `tell`: `message` has changed."""
        ...

    @property
    def awaited(self) -> bool:
        """State of a peer may come yet: the first step waits for it."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait until there is something to do at the boundary, at most so long."""
        ...

    def boundary(self, events: Sequence[InboxEvent], plan: UnitPlan, state: UnitState, step_seconds: float, *, readable: bool) -> None:
        """After the plan was carried out."""
        ...

    def holds_parameters(self) -> None:
        """Note that the first step comes next."""
        ...

    def stepped(self) -> None:
        """Note that a step is done."""
        ...

    def close(self) -> None:
        """Give and take nothing more."""
        ...


class NoPeers:
    """The peers of a process that neither gives nor takes state: what there is beside its parameters is not known."""

    address = kind = ""
    awaited = False

    def donor(self, donor: Donor) -> None:
        pass

    def give(self, give: Give) -> None:
        pass

    def marker(self, marker: Marker) -> None:
        pass

    def message(self) -> Recovery | None:
        return None

    def connect(self, model: Model, tell: Callable[[], None]) -> None:
        pass

    def wait(self, seconds: float) -> None:
        pass

    def boundary(self, events: Sequence[InboxEvent], plan: UnitPlan, state: UnitState, step_seconds: float, *, readable: bool) -> None:
        pass

    def holds_parameters(self) -> None:
        pass

    def stepped(self) -> None:
        pass

    def close(self) -> None:
        pass
