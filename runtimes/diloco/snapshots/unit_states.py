"""The inner states of units on the syncer's volume, the newest whole one of each: what units begin with once every process has died.

    <root>/v5p-0.00000007/           see unit_state_file

The number counts what was stored of the unit. A folder with such a name is complete: it is written under another name and renamed.

See docs/decisions/0266-stored-states.md.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path

from diloco.algorithm.layout import Layout
from diloco.durable import fsync_directory
from diloco.free_space import demand
from diloco.protocol.diloco_pb2 import StateBegin
from diloco.protocol.state_parts import StateError
from diloco.snapshots.store import TEMPORARY_PREFIX, Unusable
from diloco.snapshots.unit_state_file import StateWriter, StoredState, check_state, read_state
from diloco.wording import plural

FOLDER = "learners"
"""Where the states are on the syncer's volume, beside the snapshots."""
_log = logging.getLogger(__name__)

_UNIT = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}")
_NAME = re.compile(r"(?P<unit>[a-z0-9][a-z0-9.-]*)\.(?P<number>\d{8,})")


def unit_of(name: str) -> str | None:
    """Return the unit whose state is in a folder of this name; None: it is no such folder."""
    match = _NAME.fullmatch(name)
    return match["unit"] if match else None


class UnitStates:
    """The states in one directory, of one job. Blocking, so call it from a thread, but for `of`."""

    def __init__(self, root: Path, job_uid: str) -> None:
        """Begin with an empty directory, or one that does not exist; call `load` or `clear` for one that may have something in it."""
        self._root = root
        self._job_uid = job_uid
        self._changing = threading.Lock()
        self._newest: dict[str, StoredState] = {}
        self._number = 0
        self._dropped: set[str] = set()
        """Units whose states were dropped, and are to go elsewhere too."""

    def load(self) -> None:
        """Find what is stored, and remove what was torn. What cannot be read is passed over. Raises nothing."""
        if not self._root.is_dir():
            return
        for folder in sorted(self._root.iterdir()):
            if folder.name.startswith(TEMPORARY_PREFIX):
                shutil.rmtree(folder, ignore_errors=True)
            elif match := _NAME.fullmatch(folder.name):
                self._number = max(self._number, int(match["number"]))
                try:
                    state = read_state(folder)
                except Unusable as why:
                    _log.warning("the stored state %s cannot be used: %s", folder, why)
                    continue
                if state.unit != match["unit"]:
                    _log.warning("the stored state %s cannot be used: it is of unit %s", folder, state.unit)
                    continue
                self._newest[state.unit] = state  # sorted: the newest one comes last

    def clear(self) -> None:
        """Remove all that is there: the job begins anew. Raises nothing."""
        shutil.rmtree(self._root, ignore_errors=True)

    def of(self, unit: str) -> StoredState | None:
        """Return the newest state of a unit."""
        return self._newest.get(unit)

    @property
    def newest(self) -> list[StoredState]:
        """The newest state of each unit."""
        with self._changing:
            return list(self._newest.values())

    @property
    def dropped(self) -> frozenset[str]:
        """Units whose states were dropped, until `forget_dropped`."""
        with self._changing:
            return frozenset(self._dropped)

    def forget_dropped(self, units: Collection[str]) -> None:
        """Note that what these units had stored is nowhere any more."""
        with self._changing:
            self._dropped.difference_update(units)

    def adopt(self, name: str, fill: Callable[[Path], None]) -> None:
        """Add a state from another place, before `load`: `fill` writes its files into an empty folder, which is then checked. Several
        threads may adopt states of unlike units.

        Raises `Unusable` if it does not hold what its manifest says, OSError as the operating system does, and what `fill` raises.
        """
        temporary, place = self._root / f"{TEMPORARY_PREFIX}{name}", self._root / name
        if place.is_dir():  # of a process that ended before it had all of them
            return
        self._root.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            fill(temporary)
            check_state(read_state(temporary))
            for file in temporary.iterdir():
                with file.open("rb+") as opened:
                    os.fsync(opened.fileno())
            fsync_directory(temporary)
            temporary.replace(place)
            fsync_directory(self._root)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def begin(self, begin: StateBegin, layout: Layout) -> StateWriter:
        """Begin a new state of a unit, for `commit` or `abandon`. Raises StateError, and OSError, also if there is no room for it."""
        if not _UNIT.fullmatch(begin.unit):
            raise StateError(f"{begin.unit!r} is no name of a unit")
        with self._changing:
            self._number += 1
            folder = self._root / f"{TEMPORARY_PREFIX}{begin.unit}.{self._number:08d}"
        self._root.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
        writer: StateWriter | None = None
        try:
            writer = StateWriter(folder, begin, layout)
            demand(self._root, writer.bytes)
        except BaseException:
            if writer is not None:
                writer.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return writer

    def abandon(self, writer: StateWriter) -> None:
        """Remove what was not committed. Idempotent."""
        writer.close()
        shutil.rmtree(writer.folder, ignore_errors=True)

    def commit(self, writer: StateWriter) -> StoredState:
        """Make a state durable, and remove older ones of its unit. Raises OSError and StateError."""
        state = writer.finish(self._job_uid)
        writer.close()
        place = self._root / writer.folder.name.removeprefix(TEMPORARY_PREFIX)
        with self._changing:
            newest = self._newest.get(state.unit)
            if newest is not None and newest.folder.name > place.name:
                raise StateError("the unit has stored a newer state meanwhile")
            writer.folder.replace(place)
            fsync_directory(self._root)
            self._newest[state.unit] = state = replace(state, folder=place)
            self._dropped.discard(state.unit)
            self._remove(folder for folder in self._folders(state.unit) if folder.name < place.name)
        return state

    def drop(self, before: int, besides: Collection[str]) -> None:
        """Remove states of markers before outer step `before`, but those of the units `besides`: their next one is on its way. What cannot
        be removed stays, and the log says so."""
        with self._changing:
            old = [unit for unit, state in self._newest.items() if state.t < before and unit not in besides]
            for unit in old:
                try:
                    self._remove(self._folders(unit))
                except OSError as error:
                    _log.warning("the old states of unit %s could not be removed: %s", unit, error)
                del self._newest[unit]
                self._dropped.add(unit)
        if old:
            _log.info("removed the stored %s of %s", plural(len(old), "state"), ", ".join(sorted(old)))

    def forget(self, state: StoredState) -> None:
        """Pass over a state that is damaged. Its files stay for who looks into it, until the unit stores the next one."""
        with self._changing:
            if self._newest.get(state.unit) is state:
                del self._newest[state.unit]

    def _folders(self, unit: str) -> list[Path]:
        found = ((_NAME.fullmatch(folder.name), folder) for folder in self._root.iterdir())
        return [folder for match, folder in found if match and match["unit"] == unit]

    def _remove(self, folders: Iterable[Path]) -> None:
        for folder in list(folders):
            # Renamed first: a crash during the removal must not leave a folder that appears to be a damaged state.
            doomed = self._root / f"{TEMPORARY_PREFIX}old-{folder.name}"
            try:
                folder.replace(doomed)
                shutil.rmtree(doomed)
            except OSError as error:
                _log.warning("the old state %s could not be removed: %s", folder, error)
