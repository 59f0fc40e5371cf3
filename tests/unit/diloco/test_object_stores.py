"""Which driver reads what."""

from __future__ import annotations

import sys
from pathlib import Path

import fsspec
import pytest
from diloco.object_stores import file_system


@pytest.mark.parametrize(("uri", "path"), [("s3://b/jobs/x", "b/jobs/x"), ("gs://b/x/", "b/x"), ("gcs://b", "b"), ("az://c/x", "c/x")])
def test_buckets_are_read_by_obstore(uri: str, path: str) -> None:
    fs, found = file_system(uri)
    assert (type(fs).__module__, found) == ("diloco.buckets", path)


def test_what_the_rest_of_a_program_opens_stays_as_it_was() -> None:
    before = dict(fsspec.registry)
    file_system("s3://b/x")
    assert dict(fsspec.registry) == before


def test_paths_and_other_schemes_are_fsspecs(tmp_path: Path) -> None:
    assert file_system(str(tmp_path)) == (fsspec.filesystem("file"), str(tmp_path))
    assert file_system("memory://x")[0].protocol == "memory"


def test_without_the_extra_the_driver_of_fsspec_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diloco.object_stores.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ImportError, match="s3fs"):
        file_system("s3://b/x")


def test_a_bucket_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="gs:// names no bucket"):
        file_system("gs://")
