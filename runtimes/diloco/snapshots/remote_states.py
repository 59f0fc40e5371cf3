"""Copies of what units have stored, below those of the job's snapshots: a job whose volume is lost goes on with them.

    <uri>/learners/v5p-0.00000007/           the files of the volume, see unit_state_file; the manifest is uploaded last

Of each unit there is the newest one that was copied. See docs/decisions/0266-stored-states.md.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from diloco.object_stores import words
from diloco.snapshots.remote_folders import FIELD, RemoteFolders
from diloco.snapshots.store import MANIFEST_FILE, SnapshotError, Unusable
from diloco.snapshots.unit_state_file import StoredState
from diloco.snapshots.unit_states import FOLDER, UnitStates, unit_of

_log = logging.getLogger(__name__)

_AT_ONCE = 4
"""States that are fetched at once: one connection to an object store carries less than a link does."""


class RemoteStates:
    """The copies of the states of one job. Blocking; one thread at a time."""

    def __init__(self, uri: str) -> None:
        """`uri`: the folder with the copies of the job's snapshots. Raises `SnapshotError` if there is no driver for it."""
        self._folders = RemoteFolders(f"{uri.rstrip('/')}/{FOLDER}")
        self._there: dict[str, dict[str, bool]] | None = None
        """By unit the names of what is there, and whether it is complete; None: it was not listed yet."""

    def update(self, states: Collection[StoredState], dropped: Collection[str]) -> None:
        """Copy those that are not there yet, and remove what they take the place of, and all of the units `dropped`. Idempotent.

        What has left the volume meanwhile is passed over: a newer one has taken its place, and is copied by the next call. Raises
        `SnapshotError`.
        """
        for state in sorted(states, key=lambda one: one.unit):
            try:
                self._copy(state)
            except Exception as error:
                if not state.folder.is_dir():
                    continue
                raise SnapshotError(
                    f"the state of unit {state.unit} could not be copied to {self._folders.uri} ({FIELD}): {words(error)}. The one on the "
                    "syncer's volume is intact."
                ) from error
        try:
            for unit in sorted(set(dropped).difference(state.unit for state in states)):
                self._remove(unit, self._listed().get(unit, ()))
        except Exception as error:  # drivers raise classes of their own
            raise SnapshotError(
                f"the old states of {', '.join(sorted(dropped))} could not be removed from {self._folders.uri}: {words(error)}"
            ) from error

    def restore(self, states: UnitStates) -> None:
        """Copy the newest usable state of each unit to a volume that has no snapshot yet; what is damaged is passed over.

        To be called before the snapshot is restored: without one it is called again by the next process. Raises `SnapshotError`.
        """
        try:
            found = self._listed()
            with ThreadPoolExecutor(_AT_ONCE, "fetch-states") as threads:
                for _ in threads.map(lambda unit: self._restore(states, found[unit]), sorted(found)):
                    pass
        except SnapshotError:
            raise
        except Exception as error:  # as above
            raise SnapshotError(self._folders.refusal(error)) from error

    def _copy(self, state: StoredState) -> None:
        name = state.folder.name
        there = self._listed().setdefault(state.unit, {})
        if not there.get(name):
            there[name] = False
            self._folders.put(state.folder, sorted(file.name for file in state.folder.iterdir() if file.name != MANIFEST_FILE))
            there[name] = True
        self._remove(state.unit, there.keys() - {name})

    def _remove(self, unit: str, names: Collection[str]) -> None:
        for name in sorted(names):
            self._folders.remove(name)
            del self._listed()[unit][name]

    def _restore(self, states: UnitStates, there: dict[str, bool]) -> None:
        """Restore the newest of these states that can be used."""
        for name in sorted((name for name, complete in there.items() if complete), key=_number, reverse=True):

            def fill(folder: Path, name: str = name) -> None:
                self._folders.get(name, folder, self._folders.files(name))

            try:
                states.adopt(name, fill)
            except Unusable as why:
                _log.warning("the stored state %s/%s cannot be used: %s", self._folders.uri, name, why)
                there[name] = False
            else:
                return

    def _listed(self) -> dict[str, dict[str, bool]]:
        if self._there is None:
            there: dict[str, dict[str, bool]] = {}
            for name in self._folders.names():
                if (unit := unit_of(name)) is not None:
                    there.setdefault(unit, {})[name] = self._folders.holds(name)
            self._there = there
        return self._there


def _number(name: str) -> int:
    return int(name.rpartition(".")[2])
