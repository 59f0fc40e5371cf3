"""Files of ConfigMaps and Secrets as a pod sees them."""

from pathlib import Path

import pytest
from builders.pods import a_pod
from diloco_local.environment import ContainerConfigError, Sources
from diloco_local.volumes import File, PodFolder, publish
from diloco_operator.kube.client import Obj


def shown(folder: Path) -> dict[str, bytes]:
    """The files of the folder without the hidden names."""
    found: dict[str, bytes] = {}
    for top in folder.iterdir():
        if not top.name.startswith(".."):
            files = [top] if top.is_file() else [path for path in top.rglob("*") if path.is_file()]
            found |= {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return found


def test_files_change_all_at_once_for_readers_of_the_folder_behind_the_link(tmp_path: Path) -> None:
    publish(tmp_path, {"pair/key": File(b"1"), "pair/certificate": File(b"1"), "gone": File(b"x")})
    before = (tmp_path / "..data").resolve()
    publish(tmp_path, {"pair/key": File(b"2"), "pair/certificate": File(b"2"), "new": File(b"y")})
    assert shown(tmp_path) == {"pair/key": b"2", "pair/certificate": b"2", "new": b"y"}
    assert (tmp_path / "..data").resolve() != before
    assert not before.exists(), "one generation is kept"


def test_nothing_is_touched_when_nothing_changed(tmp_path: Path) -> None:
    files = {"a": File(b"1"), "b/c": File(b"\xff\x00", 0o400)}
    publish(tmp_path, files)
    before = (tmp_path / "..data").readlink()
    publish(tmp_path, files)
    assert (tmp_path / "..data").readlink() == before


def test_a_state_directory_may_be_given_from_a_folder_beside_it(tmp_path: Path) -> None:
    """As `diloco up --state-dir ../state`."""
    (tmp_path / "examples").mkdir()
    publish(tmp_path / "examples" / ".." / "volume", {"job.json": File(b"{}")})
    assert shown(tmp_path / "volume") == {"job.json": b"{}"}


def test_a_volume_may_be_empty_and_modes_are_kept(tmp_path: Path) -> None:
    publish(tmp_path, {"key": File(b"secret", 0o400)})
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o400
    publish(tmp_path, {})
    assert shown(tmp_path) == {}


def a_folder(tmp_path: Path, *volumes: Obj) -> tuple[PodFolder, Obj, Obj]:
    pod = a_pod(volumes=list(volumes), metadata={"uid": "u"})
    container = {"name": "main", "volumeMounts": [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]}
    return PodFolder(tmp_path, pod), pod, container


def test_refresh_brings_what_is_there_and_names_what_is_missing(tmp_path: Path) -> None:
    folder, pod, container = a_folder(
        tmp_path, {"name": "gone", "secret": {"secretName": "s"}}, {"name": "kept", "configMap": {"name": "c"}}
    )
    folder.mounts(pod, container, Sources({"c": {"k": b"1"}}, {"s": {"t": b"1"}}), {})
    with pytest.raises(ContainerConfigError, match="secret 's' not found"):
        folder.refresh(pod, Sources({"c": {"k": b"2"}}, {}))
    assert shown(tmp_path / "pods/u/volumes/kept") == {"k": b"2"}
    assert shown(tmp_path / "pods/u/volumes/gone") == {"t": b"1"}, "a running pod keeps what it had"


def test_refresh_leaves_volumes_alone_that_no_container_has_mounted(tmp_path: Path) -> None:
    folder, pod, _ = a_folder(tmp_path, {"name": "unused", "secret": {"secretName": "absent"}})
    folder.refresh(pod, Sources({}, {}))
    assert not (tmp_path / "pods").exists()


def test_projected_sources_share_a_default_mode_and_binary_content_survives(tmp_path: Path) -> None:
    sources = [{"secret": {"name": "s", "items": [{"key": "b", "path": "in/b"}]}}, {"configMap": {"name": "c"}}]
    folder, pod, container = a_folder(tmp_path, {"name": "both", "projected": {"defaultMode": 0o440, "sources": sources}})
    [mount, _] = folder.mounts(pod, container, Sources({"c": {"k": b"1"}}, {"s": {"b": b"\xff\xfe", "unasked": b""}}), {})
    assert shown(Path(mount.local_path)) == {"in/b": b"\xff\xfe", "k": b"1"}
    assert (Path(mount.local_path) / "in/b").stat().st_mode & 0o777 == 0o440
