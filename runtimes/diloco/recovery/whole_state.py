"""The state of a whole unit, as its taker and its storer see it: of one process, or of several ranks.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from diloco.learner.inner_state import StagedRest
from diloco.learner.stored_parts import StoredParts
from diloco.protocol.diloco_pb2 import Donor, Give
from diloco.recovery.held import Held
from diloco.recovery.process_copy import End, ProcessCopy
from diloco.recovery.process_state import ProcessState


class UnitCopy(Protocol):
    """One try to take a state, all of it."""

    @property
    def bytes(self) -> int:
        """How much has come."""
        ...

    @property
    def begun_at(self) -> float | None:
        """When the first part began, on `time.monotonic`. None if nothing has come."""
        ...

    @property
    def changed_parameters(self) -> bool:
        """Parameters of the copy are in the model, although it is not whole."""
        ...

    def go_on(self, held: Held) -> End | None:
        """Put what came in its place. Returns the end of the copy, or None if more is to come. Raises StateError."""
        ...

    def cancel(self) -> None:
        """Nothing more is wanted."""
        ...


class WholeState(Protocol):
    """Used by the training thread, but for `allow`."""

    @property
    def kind(self) -> str:
        """See `InnerState.kind`."""
        ...

    @property
    def lent(self) -> bool:
        """See `InnerState.lent`."""
        ...

    def allow(self, give: Give) -> None:
        """Let a taker have the state, of each process what it owns."""
        ...

    def stage_rest(self) -> StagedRest:
        """Keep the small rest as it is now. Raises StateError for state that cannot be given."""
        ...

    def store(self, name: str) -> StoredParts:
        """Begin to store the state under this name."""
        ...

    def begin(self) -> None:
        """Forget what was put of an earlier copy, but for parameters."""
        ...

    def copy_of_peer(self, donor: Donor, came: Callable[[], None]) -> UnitCopy:
        """Begin to copy a donor's state. `came` is called on other threads when there is something to do."""
        ...

    def copy_of_newest(self, former: Sequence[str], came: Callable[[], None]) -> UnitCopy:
        """Begin to copy what the unit has stored last, in this job or else in a former one."""
        ...

    def finish(self, rest: Any) -> None:
        """Make what was put the unit's state from now on: the copy is whole. Raises StateError, and changes nothing, if `rest` does not fit
        the program."""
        ...


class StateOfProcess:
    """A `WholeState` of a unit of one process."""

    def __init__(self, process: ProcessState) -> None:
        self._process = process
        self.allow = process.giver.allow
        self.stage_rest = process.inner.stage_rest
        self.begin = process.inner.begin
        self.finish = process.inner.finish

    @property
    def kind(self) -> str:
        return self._process.inner.kind

    @property
    def lent(self) -> bool:
        return self._process.inner.lent

    def store(self, name: str) -> StoredParts:
        return self._process.store(name)

    def copy_of_peer(self, donor: Donor, came: Callable[[], None]) -> UnitCopy:
        return ProcessCopy(self._process.copy_of_peer(donor, came), self._process.inner.put, self._process.fragment_of)

    def copy_of_newest(self, former: Sequence[str], came: Callable[[], None]) -> UnitCopy:
        return ProcessCopy(self._process.copy_of_newest(former, came), self._process.inner.put, self._process.fragment_of)
