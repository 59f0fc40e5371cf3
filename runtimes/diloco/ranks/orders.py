"""What all ranks of a unit do at the same local step, as data. Pure.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from diloco.contract import Exit


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """The version of a fragment."""

    epoch: int
    """Which of the syncer's states it is from: one that starts again from an older snapshot counts outer steps again. The leader numbers
    them."""
    t: int
    """Outer step of its merge."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Overwrite a fragment; every rank that owns a part of it has received it."""

    fragment: int
    version: Version


@dataclass(frozen=True, slots=True)
class ReadOut:
    """Keep what the model has of a fragment, for the exchange of outer step `t`. It is sent once its counters are known, to the syncer's
    state `epoch` alone."""

    fragment: int
    t: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Seed:
    """Send the job's first parameters, to the syncer's state `epoch` alone."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Begin:
    """The model has the job's parameters: the program may train."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is over: take the final parameters. Last."""

    t: int
    """Its last outer step."""


@dataclass(frozen=True, slots=True)
class Drain:
    """The unit drains. Last."""


@dataclass(frozen=True, slots=True)
class Quit:
    """The syncer does not take this unit: every rank ends with this status. Last."""

    status: Exit
    message: str


@dataclass(frozen=True, slots=True)
class Release:
    """The next local step may be done. The boundary before it is over."""

    t: int
    """Last known outer step. The same on all ranks, so that what depends on it, such as a learning rate, is."""
    steps: int
    """Outer steps of the job."""


@dataclass(frozen=True, slots=True)
class TakeState:
    """Train on from a copy of another unit's state, of which every rank has its part and has found that it fits."""

    copy: int
    """Its number among the copies of this process."""
    fragments: tuple[int, ...]
    """Those whose parameters are taken, too. All others were adopted since they were copied."""


type Last = Finish | Drain | Quit
type Action = Adopt | ReadOut | Seed | Begin | TakeState | Finish | Drain | Quit | Release
LAST = (Finish, Drain, Quit)
"""Nothing is ordered after one of these."""


@dataclass(frozen=True, slots=True)
class Order:
    """An action, and the boundary to which it belongs. A unit has one sequence of orders, the same for each of its ranks."""

    step: int
    """The local step after which it is carried out; of a `Release` the one before the step that it allows."""
    action: Action


class OrderError(ValueError):
    """The orders do not fit to what this rank has done. The message says which."""


class Cursor:
    """Where one rank is in the orders of its unit."""

    def __init__(self) -> None:
        self._ahead: list[Order] = []
        self.step = 0
        """Local steps that this rank has begun."""

    def put(self, order: Order) -> None:
        """Put an order; they come in their order."""
        self._ahead.append(order)

    def due(self) -> Action | None:
        """Return the next action to carry out now, at the boundary after local step `step`; None: this rank has to wait for its leader, or
        may do the next step (`released`). Each is given once. Raises OrderError."""
        if not self._ahead or isinstance(self._ahead[0].action, Release):
            return None
        order = self._ahead.pop(0)
        if order.step != self.step:
            raise OrderError(f"{order.action} is for the boundary after local step {order.step}, and this rank is at {self.step}")
        return order.action

    @property
    def released(self) -> bool:
        """Whether all that belongs to this boundary is done and the next step may begin."""
        return bool(self._ahead) and isinstance(self._ahead[0].action, Release)

    def begin(self) -> Release:
        """Begin the next step, and return its release. Raises OrderError while it must not."""
        if not self.released or self._ahead[0].step != self.step:
            raise OrderError(f"local step {self.step + 1} is not released")
        order = self._ahead.pop(0)
        assert isinstance(order.action, Release)
        self.step += 1
        return order.action
