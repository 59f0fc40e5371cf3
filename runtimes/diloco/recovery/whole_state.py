"""The state of a whole unit, of one process or of several ranks, as `Taker` and `Storer` see it.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from diloco.learner.inner_state import StagedRest
from diloco.learner.stored_parts import StoredParts
from diloco.protocol.diloco_pb2 import Donor, Give
from diloco.recovery.adopted_versions import AdoptedVersions
from diloco.recovery.process_copy import End, ProcessCopy
from diloco.recovery.process_state import ProcessState


class UnitCopy(Protocol):
    """One try to take the state of the whole unit."""

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

    def go_on(self, adopted: AdoptedVersions) -> End | None:
        """Put what came in its place. Return the end of the copy, or None if more is to come. Raises StateError."""
        ...

    def cancel(self) -> None: ...


class WholeState(Protocol):
    """Used by the training thread, except for `allow`."""

    @property
    def kind(self) -> str:
        """See `InnerState.kind`."""
        ...

    @property
    def lent(self) -> bool:
        """See `InnerState.lent`."""
        ...

    def allow(self, give: Give) -> None:
        """Let a taker have the state: each process gives what it owns."""
        ...

    def stage_rest(self) -> StagedRest:
        """Keep the small rest as it is now. Raises StateError for state that cannot be given."""
        ...

    def store(self, name: str) -> StoredParts:
        """Begin to store the state under this name."""
        ...

    def begin(self) -> None:
        """Forget what an earlier copy has put, except its parameters, which are in the model already."""
        ...

    def copy_of_peer(self, donor: Donor, on_arrival: Callable[[], None]) -> UnitCopy:
        """Begin to copy a donor's state. `on_arrival` is called on other threads when there is something to do."""
        ...

    def copy_of_newest(self, former: Sequence[str], on_arrival: Callable[[], None]) -> UnitCopy:
        """Begin to copy the state that the unit has stored last, in this job or else in the first former job that has one."""
        ...

    def finish(self, rest: Any) -> None:
        """Adopt what was put as the unit's state: the copy is whole. If `rest` does not fit the program, raise StateError and change
        nothing."""
        ...


class StateOfProcess:
    """The `WholeState` of a unit of one process."""

    def __init__(self, process: ProcessState) -> None:
        self._process = process

    @property
    def kind(self) -> str:
        return self._process.inner.kind

    @property
    def lent(self) -> bool:
        return self._process.inner.lent

    def allow(self, give: Give) -> None:
        self._process.state_donor.allow(give)

    def stage_rest(self) -> StagedRest:
        return self._process.inner.stage_rest()

    def store(self, name: str) -> StoredParts:
        return self._process.store(name)

    def begin(self) -> None:
        self._process.inner.begin()

    def finish(self, rest: Any) -> None:
        self._process.inner.finish(rest)

    def copy_of_peer(self, donor: Donor, on_arrival: Callable[[], None]) -> UnitCopy:
        return ProcessCopy(self._process.copy_of_peer(donor, on_arrival), self._process.inner.put, self._process.fragment_of)

    def copy_of_newest(self, former: Sequence[str], on_arrival: Callable[[], None]) -> UnitCopy:
        return ProcessCopy(self._process.copy_of_newest(former, on_arrival), self._process.inner.put, self._process.fragment_of)
