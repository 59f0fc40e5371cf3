"""Dockerfiles without an image builder: what they make, and what is refused. A RUN wants root and a system: see tests/cluster/nodes."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import pytest
from nodes import cache, dockerfiles
from nodes.oci import Image, ImageError, Layer


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(cache, "FOLDER", tmp_path / "cache")


@pytest.fixture
def base(tmp_path: Path) -> Image:
    file = tmp_path / "base.tar"
    file.write_bytes(b"base")
    layer = Layer(file, f"sha256:{hashlib.sha256(b'base').hexdigest()}")
    return Image("example.org/base:1", (layer,), ("python",), ("-V",), ("PATH=/bin", "HOME=/tmp"), "65532:65532", "/tmp")


@pytest.fixture
def context(tmp_path: Path) -> Path:
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)")
    (folder / "a-1.whl").write_text("wheel")
    return folder


def test_an_image_has_its_bases_layers_and_settings_and_those_of_the_steps(base: Image, context: Path) -> None:
    text = """\
# a comment
FROM example.org/base:1
ENV PATH=/opt/bin:/bin \\
    MODE="two words"
WORKDIR /app
COPY train.py .
COPY a-*.whl /wheels/
CMD ["train.py"]
"""
    built = dockerfiles.build("example.org/own:1", text, context, {"example.org/base:1": base})
    assert (built.name, built.user, built.working_directory) == ("example.org/own:1", "65532:65532", "/app")
    assert built.environment == ("PATH=/opt/bin:/bin", "HOME=/tmp", "MODE=two words")
    assert (built.entrypoint, built.command) == (("python",), ("train.py",))
    assert built.layers[:1] == base.layers
    names = []
    for layer in built.layers[1:]:
        with tarfile.open(layer.file) as archive:
            names.append(archive.getnames())
    assert names == [["app/train.py"], ["wheels/a-1.whl"]], "files alone, or folders of the base would get other modes"


def test_a_changed_file_makes_its_layer_and_those_above_anew(base: Image, context: Path) -> None:
    text = "FROM base\nCOPY a-1.whl /\nCOPY train.py /\nCOPY a-1.whl /b/\n"
    first = dockerfiles.build("own", text, context, {"base": base}).layers
    (context / "train.py").write_text("print(2)")
    second = dockerfiles.build("own", text, context, {"base": base}).layers
    assert [a.file == b.file for a, b in zip(first, second, strict=True)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("FROM other\n", "own: there is no image other here, only base"),
        ("FROM base\nADD x /\n", "own: ADD is not built here"),
        ("FROM base\nCOPY x.py /\n", r"own: COPY x.py / names no file, or a folder; there are \['a-1.whl', 'train.py'\]"),
    ],
)
def test_what_is_not_built_is_refused(base: Image, context: Path, text: str, says: str) -> None:
    with pytest.raises(ImageError, match=says):
        dockerfiles.build("own", text, context, {"base": base})
