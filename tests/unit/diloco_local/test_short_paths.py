"""Folders whose sockets would have names that no socket can have."""

import socket
from pathlib import Path

from diloco_local.short_paths import LONGEST, ShortPaths


def test_long_folder_gets_a_short_name_in_which_sockets_can_be_made(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    paths = ShortPaths()
    short = paths.of(folder)
    # As long as the names that multiprocessing makes below TMPDIR.
    name = "pymp-abcdefgh/listener-abcdefgh"
    (short / "pymp-abcdefgh").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short / name))
    assert (folder / name).is_socket()
    assert len(str(short)) <= LONGEST
    assert paths.of(folder) == short
    paths.close()
    assert not short.parent.exists()
    assert folder.exists(), "only the link is ours"


def test_short_folder_keeps_its_name_and_links_go_with_what_they_lead_to(tmp_path: Path) -> None:
    paths = ShortPaths()
    assert paths.of(Path("/tmp")) == Path("/tmp")
    pods = [tmp_path / ("p" * 50) / pod / "tmp" for pod in ("a", "b")]
    first, second = map(paths.of, pods)
    assert first.parent.stat().st_mode & 0o777 == 0o700
    paths.release(pods[0].parent)
    assert (first.is_symlink(), second.is_symlink()) == (False, True)
    paths.close()
