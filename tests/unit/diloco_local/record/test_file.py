"""The file of a record: what a killed command, a full disk and a long run leave of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.records import ARecord, a_killed_unit
from diloco_local.record.file import NAME, OLD_NAME, NoRecord, RecordReader, RecordWriter
from diloco_local.record.lines import Line, line_bytes


class Read:
    """All of a record."""

    def __init__(self, directory: Path) -> None:
        reader = RecordReader(directory)
        self.lines: list[Line] = list(reader)
        self.remarks = reader.remarks


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    record = a_killed_unit()
    found = Read(record.write(tmp_path))
    assert (found.lines, found.remarks) == (record.lines, ())


def test_people_can_read_a_line(tmp_path: Path) -> None:
    ARecord().fault(0.25, "u-2").write(tmp_path)
    assert (tmp_path / NAME).read_text().splitlines()[1] == (
        '{"at":"2023-11-14T22:13:20.250000+00:00","type":"fault","job":"default/lm","unit":"u-2","signal":"KILL","step":81}'
    )


def test_the_lines_of_a_second_run_stand_behind_those_of_the_first(tmp_path: Path) -> None:
    first, second = ARecord().ended(1.0), ARecord().state(0.0, "Training")
    second.write(first.write(tmp_path))
    assert Read(tmp_path).lines == first.lines + second.lines


def test_a_last_line_that_is_cut_short_is_left_out_and_said(tmp_path: Path) -> None:
    record = a_killed_unit()
    file = record.write(tmp_path) / NAME
    file.write_bytes(file.read_bytes()[:-10])
    found = Read(tmp_path)
    assert found.lines == record.lines[:-1]
    (remark,) = found.remarks
    assert remark.startswith(f"Line {len(record.lines)} of record.jsonl, its last one, is cut short: the command was ended while")


def test_a_run_after_one_that_was_killed_loses_none_of_its_lines(tmp_path: Path) -> None:
    first, second = ARecord().state(0.0, "Training"), ARecord().state(0.0, "Training").ended(3.0)
    file = first.write(tmp_path) / NAME
    file.write_bytes(file.read_bytes()[:-10])
    second.write(tmp_path)
    found = Read(tmp_path)
    assert found.lines == first.lines[:-1] + second.lines
    assert found.remarks == ("1 line of record.jsonl cannot be read, the first is line 2. Left out.",)


@pytest.mark.parametrize("junk", [b"{}", b"\xff\xfe\x00", b"[" * 100_000, b'{"at":"1e999","type":"run"}', b'{"at":NaN,"type":"run"}'])
def test_lines_that_are_none_are_left_out_and_said(tmp_path: Path, junk: bytes) -> None:
    record = ARecord()
    file = record.write(tmp_path) / NAME
    file.write_bytes(junk + b"\n" + junk + b"\n" + file.read_bytes())
    found = Read(tmp_path)
    assert found.lines == record.lines
    assert found.remarks == ("2 lines of record.jsonl cannot be read, the first is line 1. Left out.",)


def test_a_full_file_makes_room_and_the_missing_beginning_is_said(tmp_path: Path) -> None:
    record = a_killed_unit()
    most = 8 * len(line_bytes(record.lines[5]))
    writer = RecordWriter(tmp_path, most_bytes=most)
    writer.write(*record.lines)
    writer.close()
    assert max((tmp_path / name).stat().st_size for name in (NAME, OLD_NAME)) <= most
    found = Read(tmp_path)
    assert found.lines == record.lines[-len(found.lines) :]
    assert found.remarks == ("The beginning is missing: a record keeps its newest lines, at most two files of 64 MiB.",)


def test_a_file_that_cannot_be_written_stops_nothing_and_is_said(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    writer = RecordWriter(tmp_path)
    writer.write(*ARecord().ended(1.0).lines)
    (tmp_path / NAME).rmdir()
    writer.write(*ARecord().lines)
    writer.close()
    assert writer.dropped == 2
    assert writer.error == f"{tmp_path / NAME} cannot be written: Is a directory"
    assert len(Read(tmp_path).lines) == 1, "it goes on once it can"


def test_a_directory_without_a_record_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoRecord, match=r"has no record.jsonl: give the state directory of a `diloco up`"):
        Read(tmp_path)
    (tmp_path / NAME).write_text("hello\n")
    with pytest.raises(NoRecord, match=r"has no line that can be read. 1 line of record.jsonl cannot be read"):
        Read(tmp_path)
