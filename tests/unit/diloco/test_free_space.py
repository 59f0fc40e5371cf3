"""Too little room on the volume: told in figures before anything is written, and nothing is half-written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from builders.full_volume import with_free_bytes
from diloco.free_space import NoRoom, demand, remedy


def test_what_is_missing_is_said_in_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_free_bytes(monkeypatch, 1_258_291)  # 1.2 MiB
    demand(tmp_path, 1_258_291)
    with pytest.raises(NoRoom) as refused:
        demand(tmp_path / "not" / "there", 3 << 30)
    assert refused.value.errno == errno.ENOSPC
    assert refused.value.strerror == "it needs 3.00 GiB, and 1.2 MiB are free"
    assert not (tmp_path / "not").exists()


def test_file_system_that_does_not_say_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_free_bytes(monkeypatch, 0, blocks=0)
    demand(tmp_path, 1 << 40)

    def refuses(_: object) -> os.statvfs_result:
        raise OSError(errno.ENOSYS, "not implemented")

    monkeypatch.setattr(os, "statvfs", refuses)
    demand(tmp_path, 1 << 40)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_full_volume_needs_room(number: int) -> None:
    assert remedy(OSError(number, "full")) == "Give the syncer's volume more room (spec.syncer.storage.size)"
    assert remedy(OSError(number, "full"), "keep fewer").endswith("(spec.syncer.storage.size) or keep fewer")


def test_other_refusals_are_to_be_looked_into() -> None:
    assert remedy(OSError(errno.EIO, "broken"), "keep fewer") == "Check the syncer's volume"
