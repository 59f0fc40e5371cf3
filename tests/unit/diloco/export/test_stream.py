from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from builders.snapshots import a_model, save_snapshot
from diloco.export.model_file import open_model
from diloco.export.places import ExportError
from diloco.export.stream import RECEIVED, Announcement, StreamReader, send


class Received:
    """What a reader passes on."""

    def __init__(self) -> None:
        self.announced: list[Announcement] = []
        self.file = bytearray()
        self.reader = StreamReader(self.announced.append, self.file.extend)

    def take(self, stream: bytes, piece: int) -> None:
        for at in range(0, len(stream), piece):
            self.reader.feed(stream[at : at + piece])
        self.reader.end()


@pytest.fixture
def sent(tmp_path: Path) -> tuple[bytes, bytes]:
    """A stream, and the file in it."""
    save_snapshot(tmp_path, 7, a_model())
    output = io.BytesIO()
    with open_model(str(tmp_path)) as model:
        send(model, output, io.BytesIO())
    with open_model(str(tmp_path)) as model:
        return output.getvalue(), b"".join(model.pieces())


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_a_stream_comes_whole_in_pieces_of_any_size(sent: tuple[bytes, bytes], piece: int) -> None:
    stream, file = sent
    received = Received()
    received.take(stream, piece)
    assert received.reader.complete
    assert bytes(received.file) == file
    assert [(one.step, one.job, one.bytes, one.parameters) for one in received.announced] == [(7, "bytes-lm", len(file), 16)]


def test_a_stream_that_is_cut_anywhere_is_an_error(sent: tuple[bytes, bytes]) -> None:
    stream, file = sent
    begin = stream.index(b"\n") + 1
    for cut in (0, 5, begin, begin + 1, begin + len(file), len(stream) - 1):
        received = Received()
        with pytest.raises(ExportError, match="the stream ended"):
            received.take(stream[:cut], 64)
        assert not received.reader.complete


def test_a_changed_byte_is_an_error(sent: tuple[bytes, bytes]) -> None:
    stream, _ = sent
    at = stream.index(b"\n") + 200
    changed = stream[:at] + bytes([stream[at] ^ 1]) + stream[at + 1 :]
    with pytest.raises(ExportError, match="do not have the checksum"):
        Received().take(changed, 64)


@pytest.mark.parametrize("junk", [b"bash: python: not found\n", b'{"a": 1}\n', b"x" * 70000, b"[]\n"])
def test_anything_else_is_no_stream(junk: bytes) -> None:
    with pytest.raises(ExportError, match="is not one of"):
        Received().take(junk, 1 << 20)


def test_a_stream_of_a_later_format_says_so(sent: tuple[bytes, bytes]) -> None:
    line, _, rest = sent[0].partition(b"\n")
    later = json.dumps(json.loads(line) | {"format": 2}).encode() + b"\n" + rest
    with pytest.raises(ExportError, match="format 2"):
        Received().take(later, 64)


@pytest.mark.slow
def test_the_sender_stays_until_the_reader_has_everything(tmp_path: Path, sent: tuple[bytes, bytes]) -> None:
    process = subprocess.Popen([sys.executable, "-m", "diloco.export", str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    received = Received()
    received.take(process.stdout.read(len(sent[0])), 1000)
    assert process.poll() is None
    process.stdin.write(RECEIVED)
    process.stdin.close()
    assert process.wait() == 0
    assert bytes(received.file) == sent[1]


@pytest.mark.slow
def test_what_cannot_be_exported_ends_with_1_and_the_reason(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "diloco.export", str(tmp_path)], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert ended.stderr.decode().startswith(f"there are no snapshots in {tmp_path}: ")
