"""One control plane at a time on a state directory."""

import os
from pathlib import Path

import pytest
from diloco_local.state_dir import StateDir, StateDirBusy, StateDirUnusable


def test_second_control_plane_on_a_directory_is_refused_with_the_first_ones_process(tmp_path: Path) -> None:
    with StateDir(tmp_path), pytest.raises(StateDirBusy, match=rf"process {os.getpid()}\).*--state-dir"), StateDir(tmp_path):
        pass
    with StateDir(tmp_path):
        pass


def test_volumes_and_logs_stay_and_what_belonged_to_pods_goes(tmp_path: Path) -> None:
    for folder in ("volumes/default/claim", "logs/default/pod", "pods/uid"):
        (tmp_path / folder).mkdir(parents=True)
    with StateDir(tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "logs", "pods", "volumes"]
        assert list((tmp_path / "pods").iterdir()) == []


def test_directory_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateDirUnusable, match="Not a directory"), StateDir(tmp_path / "file" / "state"):
        pass
