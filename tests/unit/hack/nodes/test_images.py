"""Images for real nodes: what is in the archive, and what is made anew."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
from nodes import cache, machine
from nodes.oci import Image, Layer


def layer(folder: Path, content: bytes) -> Layer:
    file = folder / f"{content.decode()}.tar"
    file.write_bytes(content)
    return Layer(file, f"sha256:{hashlib.sha256(content).hexdigest()}")


def members(image: Image, held: set[str]) -> dict[str, bytes]:
    archive = io.BytesIO()
    image.write(archive, held)
    archive.seek(0)
    with tarfile.open(fileobj=archive) as found:
        return {member.name: found.extractfile(member).read() for member in found}  # type: ignore[union-attr]


def test_an_archive_names_everything_by_its_digest_and_starts_what_the_image_says(tmp_path: Path) -> None:
    image = Image("example.org/a:1", (layer(tmp_path, b"below"), layer(tmp_path, b"above")), ("python",), ("-V",), user="65532:65532")
    found = members(image, set())
    for path, content in found.items():
        if path.startswith("blobs/"):
            assert path == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    (described,) = json.loads(found["index.json"])["manifests"]
    assert described["digest"] == image.digest
    assert described["annotations"] == {"io.containerd.image.name": "example.org/a:1"}
    manifest = json.loads(found[f"blobs/{image.digest.replace(':', '/')}"])
    assert [found[f"blobs/{each['digest'].replace(':', '/')}"] for each in manifest["layers"]] == [b"below", b"above"]
    config = json.loads(found[f"blobs/{manifest['config']['digest'].replace(':', '/')}"])
    assert (config["config"]["Entrypoint"], config["config"]["Cmd"], config["config"]["User"]) == (["python"], ["-V"], "65532:65532")
    assert config["rootfs"]["diff_ids"] == [each["digest"] for each in manifest["layers"]]


def test_layers_that_a_node_holds_are_left_out_of_the_archive(tmp_path: Path) -> None:
    below, above = layer(tmp_path, b"below"), layer(tmp_path, b"above")
    found = members(Image("example.org/a:1", (below, above), ("python",)), {below.digest})
    assert b"below" not in found.values()
    assert b"above" in found.values()


def test_what_was_half_made_is_made_again(tmp_path: Path) -> None:
    def fails(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        cache.made_once(tmp_path / "layer", fails)
    made = cache.made_once(tmp_path / "layer", lambda folder: (folder / "whole").touch())
    assert [path.name for path in made.iterdir()] == ["whole"]
    cache.made_once(tmp_path / "layer", fails)  # it is there: nothing is made


def test_a_changed_file_and_a_renamed_one_change_the_key_and_compiled_ones_do_not(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    file = tmp_path / "tree" / "module.py"
    file.write_text("a = 1")
    keys = [cache.tree_key(tmp_path / "tree")]
    (tmp_path / "tree" / "module.pyc").write_bytes(b"\0")
    assert cache.tree_key(tmp_path / "tree") == keys[0]
    file.write_text("a = 2")
    keys.append(cache.tree_key(tmp_path / "tree"))
    file.rename(tmp_path / "tree" / "other.py")
    keys.append(cache.tree_key(tmp_path / "tree"))
    assert len(set(keys)) == 3


def test_a_machine_without_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert machine.why_not() == ["namespaces, bridges and mounts need root: run it as root."]
