"""What the threads of a copy do to their process."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

import pytest
from builders.exchange import WAIT_TIMEOUT
from builders.snapshots import MODEL
from builders.stored_states import a_stored_state
from diloco.algorithm.pieces import wholes
from diloco.recovery.copying import StoredCopy, newest
from diloco.snapshots.stored_state import FOLDER, StoredState, UnitFolder

pytestmark = pytest.mark.slow


class Hanging(UnitFolder):
    """Its driver never answers."""

    reading = threading.Event()

    def read(self, state: StoredState, file: str, size: int, sha256: str) -> bytes:
        self.reading.set()
        threading.Event().wait()
        raise AssertionError


def copy_and_leave(uri: str) -> None:
    folder = Hanging(f"{uri}/{FOLDER}/a")
    copy = StoredCopy(lambda: newest(lambda former: folder, ()), "a", "torch AdamW", MODEL, wholes(MODEL.tensors), lambda: None)
    copy.start()
    assert folder.reading.wait(WAIT_TIMEOUT)
    copy.cancel()


def test_a_store_that_hangs_keeps_no_process_from_its_end(tmp_path: Path) -> None:
    a_stored_state(f"file://{tmp_path}", "a", t=8)
    process = multiprocessing.get_context("spawn").Process(target=copy_and_leave, args=(f"file://{tmp_path}",))
    process.start()
    process.join(WAIT_TIMEOUT)
    ended = process.exitcode
    process.kill()
    process.join()
    assert ended == 0
