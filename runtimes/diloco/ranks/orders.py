"""What all ranks of a unit do at the same local step, as data. Pure.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from diloco.contract import Exit


@dataclass(frozen=True, slots=True, order=True)
class Version:
    epoch: int
    """The process's number of the syncer's incarnation. A syncer that starts from an older snapshot counts some outer steps again."""
    t: int
    """Outer step of its merge."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Overwrite a fragment. Every rank that owns a part of it has received that."""

    fragment: int
    version: Version


@dataclass(frozen=True, slots=True)
class ReadOut:
    """Keep the fragment's present values for the exchange of outer step `t`. They are sent once their counters are known, and only to the
    syncer's incarnation `epoch`."""

    fragment: int
    t: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Seed:
    """Send the job's first parameters, only to the syncer's incarnation `epoch`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Begin:
    """The model has the job's parameters: the program may train."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is over: take the final parameters. A last order."""

    t: int
    """The job's last outer step."""


@dataclass(frozen=True, slots=True)
class Drain:
    """The unit drains. A last order."""


@dataclass(frozen=True, slots=True)
class Quit:
    """The syncer refuses this unit: every rank ends with this status. A last order."""

    status: Exit
    message: str


@dataclass(frozen=True, slots=True)
class Release:
    """Take the next local step. The boundary before it is over."""

    t: int
    """Last known outer step. It is the same on all ranks, so that values that depend on it, such as a learning rate, are the same, too."""
    steps: int
    """Outer steps of the job."""


@dataclass(frozen=True, slots=True)
class TakeState:
    """Train on from a copy of another unit's state. Every rank has its part of it, and has found that it fits."""

    copy: int
    """Number of the copy among those of this unit."""
    fragments: tuple[int, ...]
    """Fragments whose parameters are taken, too. The unit has adopted the others since they were copied."""


type Last = Finish | Drain | Quit
type Action = Adopt | ReadOut | Seed | Begin | TakeState | Finish | Drain | Quit | Release
LAST = (Finish, Drain, Quit)
"""Nothing is ordered after one of these."""


@dataclass(frozen=True, slots=True)
class Order:
    """An action, and the boundary to which it belongs. A unit has one sequence of orders, the same for each of its ranks."""

    step: int
    """The local step after which it is carried out. A `Release` with step n allows step n + 1."""
    action: Action


class OrderError(ValueError):
    """An order does not fit the step that this rank is at. The message says which."""


class Cursor:
    """One rank's place in the orders of its unit."""

    def __init__(self) -> None:
        self._ahead: list[Order] = []
        self.step = 0
        """Local steps that this rank has begun."""

    def put(self, order: Order) -> None:
        """Add an order. They must come in sequence."""
        self._ahead.append(order)

    def due(self) -> Action | None:
        """Return the next action to carry out at this boundary, each once. None if this rank must wait for its leader, or the next step is
        `released`. Raises OrderError."""
        if not self._ahead or isinstance(self._ahead[0].action, Release):
            return None
        order = self._ahead.pop(0)
        if order.step != self.step:
            raise OrderError(f"{order.action} is for the boundary after local step {order.step}, and this rank is at {self.step}")
        return order.action

    @property
    def released(self) -> bool:
        """All orders for this boundary are carried out, and the next step may begin."""
        return bool(self._ahead) and isinstance(self._ahead[0].action, Release)

    def begin(self) -> Release:
        """Begin the next step, and return its release. Raises OrderError if it is not released."""
        if not self.released or self._ahead[0].step != self.step:
            raise OrderError(f"local step {self.step + 1} is not released")
        order = self._ahead.pop(0)
        assert isinstance(order.action, Release)
        self.step += 1
        return order.action
