"""A unit stores its inner state at `checkpoint.uri` at each marker, and trains on. If all units die, the job goes on with these states.

Each process writes its own pieces. When all have done so, the small rest of all processes is read after one local step, and the manifest
makes the state visible. While a peer takes this unit's state, storing waits.

See docs/decisions/0266-stored-states.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from diloco.algorithm.layout import Layout
from diloco.learner.config import LearnerConfig
from diloco.learner.inner_state import StagedRest, names_by_tensor, names_of, steps_behind
from diloco.learner.stored_parts import StoredParts
from diloco.object_stores import words
from diloco.protocol.diloco_pb2 import Marker
from diloco.protocol.state_parts import StateError
from diloco.protocol.state_values import encode
from diloco.recovery.whole_state import WholeState
from diloco.snapshots.store import SnapshotError
from diloco.snapshots.stored_state import Block, StoredState, check_fits, folder_of

MOST_SECONDS = 2400.0
"""How long storing a state may take before the unit reports that it is not stored."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _UnderWay:
    state: StoredState
    parts: StoredParts
    begun_at: float
    committing: bool = False
    """All parts are written, and the rest is read."""


class Storer:
    """The training thread calls it, except `marker`. Threads of their own write."""

    def __init__(
        self,
        config: LearnerConfig,
        layout: Layout,
        state: WholeState,
        process: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`process`: see `StoredState`."""
        self._now = now
        self._process = process
        self._config = config
        self._layout = layout
        self._state = state
        self._marker: Marker | None = None
        self._under_way: _UnderWay | None = None
        self._closed = False
        self.error = ""
        """Why the newest state could not be stored. Empty if it was."""

    def marker(self, marker: Marker) -> None:
        """Note that the syncer wants a state stored. The connection's thread calls it; a newer marker replaces one that waits."""
        self._marker = marker

    def at_boundary(self, local_step: int, step_seconds: float) -> None:
        """Begin to store, or go on with it. Called only while the state can be read."""
        if (under_way := self._under_way) is not None:
            self._go_on(under_way, step_seconds)
            if self._under_way is under_way and not self.error and self._now() - under_way.begun_at > MOST_SECONDS:
                self.error = f"it has been under way for {MOST_SECONDS:.0f} s; the one before it is intact"
        elif (marker := self._marker) is not None and not self._closed:
            self._marker = None
            self._begin(marker, local_step)

    def close(self) -> None:
        """Store nothing more. A state that is half written is never visible, and the one before it stays."""
        self._closed = True
        if (under_way := self._under_way) is not None:  # read once: the thread that commits sets it to None
            under_way.parts.end()

    def _begin(self, marker: Marker, local_step: int) -> None:
        state = StoredState(
            unit=self._config.unit,
            attempt=self._config.attempt,
            t=marker.t,
            local_step=local_step,
            steps=0,
            kind=self._state.kind,
            fingerprint=self._layout.fingerprint,
            rest=(0, ""),
            blocks=(),
            process=self._process,
        )
        self._under_way = _UnderWay(state, self._state.store(state.name), self._now())

    def _go_on(self, under_way: _UnderWay, step_seconds: float) -> None:
        if under_way.committing:
            return
        try:
            under_way.parts.at_boundary(step_seconds)
            if not under_way.parts.done():
                return
            rest = self._state.stage_rest()
        except StateError as error:
            self._failed(str(error))
        except Exception as error:  # noqa: BLE001 - of a framework: this unit trains on
            _log.exception("the state could not be stored")
            self._failed(f"{type(error).__name__}: {error}")
        else:
            under_way.committing = True
            threading.Thread(target=self._commit, args=(under_way, rest), name="diloco-store", daemon=True).start()

    def _commit(self, under_way: _UnderWay, rest: StagedRest) -> None:
        state = under_way.state
        try:
            blocks = under_way.parts.blocks()
            tree = rest.wait()
            _check_arrays(names_of(tree), blocks)
            data = encode(tree)
            whole = replace(state, steps=steps_behind(tree), rest=(len(data), sha256(data).hexdigest()), blocks=blocks)
            # Checked before `finish` removes the state before it: a unit would refuse a state that does not fit, and begin without any.
            check_fits(whole, state.unit, state.kind, self._layout)
            if self._closed:
                return
            folder_of(self._config.job, state.unit).finish(whole, data)
        except (StateError, SnapshotError) as error:
            self._failed(str(error))
        except Exception as error:  # noqa: BLE001 - drivers raise classes of their own: this unit trains on
            self._failed(words(error) or type(error).__name__)
        else:
            _log.info("has stored its state of local step %d, after outer step %d", state.local_step, state.t)
            self.error = ""
            self._under_way = None

    def _failed(self, why: str) -> None:
        self._under_way = None
        if not self._closed:
            _log.warning("the state is not stored: %s; the one before it is intact", why)
            self.error = why


def _check_arrays(names: Mapping[str, frozenset[str]] | None, blocks: Sequence[Block]) -> None:
    """Raise StateError if the optimizer had other arrays when the small rest was read than the blocks have. `names` is from `names_of`."""
    if names is None:
        return
    stored = names_by_tensor(array for block in blocks for array in block.arrays)
    for tensor, kept_names in names.items():
        if differing := kept_names ^ stored.get(tensor, frozenset()):
            raise StateError(f"the optimizer has begun to keep {min(differing)} of {tensor} meanwhile")
