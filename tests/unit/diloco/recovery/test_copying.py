"""How a process copies what it owns: from the processes of a donor over real connections, and what its threads do to their process."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from builders.exchange import WAIT_TIMEOUT, Place, until, weights
from builders.momentum_learner import MomentumState
from builders.snapshots import MODEL
from builders.stored_states import a_stored_state
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.pieces import Piece, deal, wholes
from diloco.learner.arrays import ArrayStore
from diloco.learner.config import read_learner_config
from diloco.learner.incarnations import Incarnations
from diloco.protocol.diloco_pb2 import Donor, Give
from diloco.recovery import copying
from diloco.recovery.adopted_versions import AdoptedVersions
from diloco.recovery.copying import Copy, CopyDone, CopyFailed, Found, StoredCopy, newest
from diloco.recovery.process_copy import ProcessCopy
from diloco.recovery.process_state import ProcessState
from diloco.snapshots import store, stored_state
from diloco.snapshots.stored_state import FOLDER, StoredState, UnitFolder
from fsspec.implementations.local import LocalFileSystem

pytestmark = pytest.mark.slow

LAYOUT = Layout(ArrayStore(weights()).specs())
DONORS = 3


class Processes:
    """Of the units a, which gives its state, and b; both are at version 5."""

    def __init__(self, folder: Path) -> None:
        self._place = Place(folder)
        self._incarnations = Incarnations()
        self._incarnations.number(b"now")
        self.donors = [self.process("a", rank, owned, value=1.0) for rank, owned in enumerate(deal(LAYOUT.tensors, DONORS))]
        self.donors[0].state_donor.stage_rest = self.donors[0].inner.stage_rest
        self.donor = Donor(unit="a", attempt=1, grant=b"g", rank_addresses=[one.address for one in self.donors])
        for one in self.donors:
            one.state_donor.allow(Give(unit="b", attempt=1, grant=b"g"))

    def process(self, unit: str, rank: int, owned: list[Piece], value: float = 0.0, ranks: int = 2) -> ProcessState:
        config = read_learner_config(self._place.of_learner("127.0.0.1:1", unit, POD_IP="127.0.0.1"))
        inner = MomentumState(weights(value))
        for momentum in inner.momentum.values():
            momentum[...] = value
        process = ProcessState(config, LAYOUT, make_fragments(LAYOUT, 2), inner, owned, self._incarnations, rank=rank, alone=ranks == 1)
        process.adopted.epoch, process.adopted.versions = 0, [5, 5]
        return process

    @contextmanager
    def training(self) -> Iterator[None]:
        """The donors come to their step boundaries."""
        over = threading.Event()

        def train() -> None:
            while not over.wait(0.01):
                for one in self.donors:
                    one.state_donor.at_boundary(one.adopted, 0.1, readable=True)

        thread = threading.Thread(target=train)
        thread.start()
        yield
        over.set()
        thread.join()

    def end(self) -> None:
        for one in self.donors:
            one.close()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(tmp_path)
    yield found
    found.end()


def taken(process: ProcessState, copy: Copy) -> CopyDone | CopyFailed:
    """The end of a copy, once all that comes is put in its place."""
    process.inner.begin()
    puts = ProcessCopy(copy, process.inner.put, process.fragment_of)
    end: CopyDone | CopyFailed = until(lambda: puts.go_on(process.adopted), "the copy ends")
    return end


def test_a_process_takes_what_each_process_of_the_donor_owns(processes: Processes) -> None:
    taker = processes.process("b", 0, wholes(LAYOUT.tensors), ranks=1)
    with processes.training():
        end = taken(taker, taker.copy_of_peer(processes.donor, lambda: None))
    taker.close()
    assert isinstance(end, CopyDone), end
    taker.inner.finish(end.rest)
    assert isinstance(taker.inner, MomentumState)
    for arrays in (taker.inner.arrays_of_model, taker.inner.momentum):
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, np.ones_like(array), err_msg=name)
    assert [set(one.state_donor._served["b"]) for one in processes.donors] == [{0}] * DONORS


def test_ranks_of_units_that_are_sharded_alike_ask_one_process_each(processes: Processes) -> None:
    takers = [processes.process("b", rank, owned) for rank, owned in enumerate(deal(LAYOUT.tensors, DONORS))]
    with processes.training():
        ends = [taken(taker, taker.copy_of_peer(processes.donor, lambda: None)) for taker in takers]
    for taker in takers:
        taker.close()
    assert all(isinstance(end, CopyDone) for end in ends), ends
    assert [set(one.state_donor._served["b"]) for one in processes.donors] == [{0}, {1}, {2}]
    assert [end.rest for end in ends if isinstance(end, CopyDone)] == [{"steps": 0}, None, None]


def test_a_donor_one_of_whose_processes_leaves_gives_no_state(processes: Processes) -> None:
    taker = processes.process("b", 0, wholes(LAYOUT.tensors), ranks=1)
    processes.donors[2].state_donor.close()
    with processes.training():
        end = taken(taker, taker.copy_of_peer(processes.donor, lambda: None))
    taker.close()
    assert end == CopyFailed("the syncer has not named attempt 1 of unit b as a taker")


def test_a_donor_whose_processes_own_less_than_the_model_is_found_out(processes: Processes) -> None:
    taker = processes.process("b", 0, wholes(LAYOUT.tensors), ranks=1)
    del processes.donor.rank_addresses[2]
    with processes.training():
        end = taken(taker, taker.copy_of_peer(processes.donor, lambda: None))
    taker.close()
    missing = sum(piece.elements for piece in deal(LAYOUT.tensors, DONORS)[2])
    assert end == CopyFailed(f"the donor's processes did not give {missing} elements of what this one owns")


class Hanging(UnitFolder):
    """Its driver never answers."""

    reading = threading.Event()

    def read(self, state: StoredState, file: str, size: int, sha256: str, heard: Callable[[], None] | None = None) -> bytes:
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


class SlowLink:
    """Virtual time, in which each read of a block takes SECONDS_OF_PIECE for each PIECE bytes."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[float] = []
        self._changed = threading.Condition()

    def monotonic(self) -> float:
        return self.now

    @property
    def waiting(self) -> int:
        """Reads under way."""
        with self._changed:
            return sum(due > self.now for due in self._due)

    def carry(self, data: bytes) -> bytes:
        with self._changed:
            due = self.now + len(data) / PIECE * SECONDS_OF_PIECE
            self._due.append(due)
            assert self._changed.wait_for(lambda: self.now >= due, WAIT_TIMEOUT)
        return data

    def second(self) -> None:
        with self._changed:
            self.now += 1
            self._changed.notify_all()


PIECE, SECONDS_OF_PIECE = 64, 10


def test_a_copy_goes_on_while_bytes_of_its_blocks_come_however_slowly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_state, "BLOCK_BYTES", 4 * PIECE)
    monkeypatch.setattr(store, "_FIRST_PIECE", PIECE)
    layout = Layout(TensorSpec(f"w{index}", (PIECE,)) for index in range(4))  # four pieces each
    stored = a_stored_state(f"file://{tmp_path}", "a", t=8, layout=layout)
    assert [block.bytes for block in stored.blocks] == [4 * PIECE] * 4
    link, cat_file = SlowLink(), LocalFileSystem.cat_file

    def slowly(fs: LocalFileSystem, path: str, **more: int) -> bytes:
        data: bytes = cat_file(fs, path, **more)
        return link.carry(data) if "/00000-" in path else data

    monkeypatch.setattr(LocalFileSystem, "cat_file", slowly)
    for module in (copying, store):
        monkeypatch.setattr(module, "time", link)
    folder = UnitFolder(f"file://{tmp_path}/{FOLDER}/a")
    copy = StoredCopy(lambda: Found(folder, stored), "a", stored.kind, layout, wholes(layout.tensors), lambda: None, with_rest=False)
    puts = ProcessCopy(copy, lambda array, values: None, {}, now=link.monotonic)
    copy.start()
    for _ in range(4 * SECONDS_OF_PIECE):
        until(lambda: link.waiting == 4, "all blocks are under way")
        assert puts.go_on(AdoptedVersions(0)) is None
        link.second()
    assert isinstance(until(lambda: puts.go_on(AdoptedVersions(0)), "the copy ends"), CopyDone)


def test_a_file_that_comes_fast_is_read_in_larger_and_larger_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_FIRST_PIECE", 1)
    monkeypatch.setattr(store, "_MOST_PIECE", 4)
    monkeypatch.setattr(store, "time", SlowLink())
    (tmp_path / "file").write_bytes(bytes(range(13)))
    heard: list[None] = []
    assert store.read_file(LocalFileSystem(), str(tmp_path), "file", 13, lambda: heard.append(None)) == bytes(range(13))
    assert len(heard) == 5, "1, 2, 4, 4 and 2 bytes"
