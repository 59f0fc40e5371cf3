"""The extra `buckets` against a fake of S3 (moto), which runs in an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from builders.documents import ROOT
from builders.dying_job import DyingJob
from builders.exchange import until
from builders.momentum_job import begins
from diloco.export.listing import State, list_states
from diloco.export.places import ExportError, find_snapshot
from diloco.object_stores import file_system
from diloco.snapshots.remote import RemoteSnapshots
from diloco.snapshots.store import SnapshotError, SnapshotStore
from diloco.snapshots.tensor_file import TensorParts
from diloco.trainers.tokens import DataError, TokenSource

pytestmark = pytest.mark.xdist_group("images")
MOTO = "moto[server,s3]==5.2.5"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a fake of S3 with a bucket named `bucket`, and yield its address."""
    folder = tmp_path_factory.mktemp("moto")
    uv = ROOT / ".tools" / "uv" / "bin" / "uv"
    command = [
        str(uv) if uv.exists() else "uv",
        "tool",
        "run",
        "--python",
        sys.executable,
        "--from",
        MOTO,
        "moto_server",
        "-H",
        "127.0.0.1",
    ]
    log = folder / "log"
    with log.open("wb") as output:
        server = subprocess.Popen([*command, "-p", "0"], stdout=output, stderr=output, start_new_session=True)
    try:
        mark = "Running on "
        until(lambda: server.poll() is not None or mark in log.read_text(), "the fake of S3 listens", timeout=300)
        assert server.poll() is None, log.read_text()
        found = log.read_text().partition(mark)[2].split()[0]
        with urllib.request.urlopen(urllib.request.Request(f"{found}/bucket", method="PUT"), timeout=180) as answer:
            assert answer.status == 200
        yield found
    finally:
        os.killpg(server.pid, 15)
        server.wait()


@pytest.fixture(autouse=True)
def credentials(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": address,
        "AWS_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)


def snapshot(store: SnapshotStore, t: int, weight: float) -> Path:
    return store.save(t, TensorParts([{"value/w": np.full(4096, weight, np.float32)}]), {"job": {"name": "llama"}})


def test_snapshots_are_copied_to_a_bucket_kept_restored_and_exported(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "store", keep=5)
    remote = RemoteSnapshots("s3://bucket/jobs/uid", keep=2)
    made = [snapshot(store, t, float(t)) for t in (10, 20, 30)]
    for path in made:
        remote.upload(path)
    assert [remote.holds(path.name) for path in made] == [False, True, True]
    empty = SnapshotStore(tmp_path / "empty", keep=5)
    restored = RemoteSnapshots("s3://bucket/jobs/uid", keep=2).restore(empty)
    assert restored is not None
    assert {file.name: file.read_bytes() for file in restored.iterdir()} == {file.name: file.read_bytes() for file in made[2].iterdir()}
    found = find_snapshot("s3://bucket/jobs", step=20)
    assert (found.t, found.job, found.name) == (20, "llama", f"s3://bucket/jobs/uid/{made[1].name}")


def test_a_job_whose_volume_is_lost_goes_on_from_a_bucket_with_what_its_units_had_stored(tmp_path: Path) -> None:
    with DyingJob(tmp_path / "job", uri="s3://bucket/lost").running() as job:
        for name in ("a", "b"):
            begins(job.unit(name))
        fs, path = file_system("s3://bucket/lost")
        until(lambda: fs.exists(path), "the first snapshot is copied")
        until(lambda: len({one.unit for one in list_states("s3://bucket/lost")}) == 2, "both have stored their states")
        job.die()
        copied = {one.unit: one for one in list_states("s3://bucket/lost", check=True)}
        assert {one.state for one in copied.values()} == {State.WHOLE}
        shutil.rmtree(job.place.state)
        job.begin_again()
        for name in ("a", "b"):
            job.unit(name)
        taken = {name: job.recovery(name) for name in ("a", "b")}
        # One of them may find that the other one trains already, and takes its state then.
        stored = [name for name, said in taken.items() if said.stored]
        assert stored
        assert all(taken[name].t == copied[name].step for name in stored)
        assert all(said.why == "" for said in taken.values())


def test_training_data_is_read_from_a_bucket(tmp_path: Path) -> None:
    tokens = np.arange(1_000_000, dtype="<u2")
    fs, path = file_system("s3://bucket/tokens/train.bin")
    fs.pipe_file(path, tokens.tobytes())
    read = TokenSource("s3://bucket/tokens/train.bin", cache=tmp_path).read()
    np.testing.assert_array_equal(read, tokens)


def test_a_bucket_that_is_not_there_is_named_with_what_asks_for_it(tmp_path: Path) -> None:
    path = snapshot(SnapshotStore(tmp_path / "store", keep=5), 1, 1.0)
    with pytest.raises(
        SnapshotError,
        match=r"copied to s3://nobody/jobs \(spec.training.checkpoint.uri\): .*NoSuchBucket.*The one on the syncer's volume is intact.$",
    ):
        RemoteSnapshots("s3://nobody/jobs", keep=1).upload(path)
    with pytest.raises(ExportError, match=r"^s3://nobody/jobs cannot be read: .*NoSuchBucket[^\n]*$"):
        find_snapshot("s3://nobody/jobs")
    with pytest.raises(DataError, match=r"s3://nobody/x\.bin cannot be read: [^\n]*$"):
        TokenSource("s3://nobody/x.bin", cache=tmp_path).read()
