"""`diloco tape show` and `diloco replay` on the tape of a job that was trained for it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from builders.exchange import LocalLearner, LocalSyncer, Place, job_file, training, until
from click.testing import CliRunner, Result
from diloco.tape.records import RecordFile, write_record
from diloco.tape.segments import FOLDER, heads, segments
from diloco_cli.diloco.main import main
from diloco_cli.diloco.replay import EXIT_DIFFERS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the volume of a syncer that two learners have trained with, as it is in mid-training. No snapshot holds its merges but the
    first one."""
    directory = tmp_path_factory.mktemp("job")
    place = Place(directory, job_file(training(100_000, checkpoint={"every_steps": 100_000, "keep": 1}, compression="Int4")))
    image = directory / "image"
    with LocalSyncer(place) as syncer:
        learners = [LocalLearner(place, syncer.address, unit).start() for unit in ("u", "v")]
        until(lambda: sum(len(merge["given"]) > 1 for merge in merges(place.state)) >= 6, "six merges of two units")
        shutil.copytree(place.state, image)
        for learner in learners:
            learner.drain()
            learner.wait()
    return image


def merges(volume: Path) -> list[dict[str, Any]]:
    return [head for head in heads(volume / FOLDER) if head["type"] == "merge"]


def diloco(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_show_prints_a_row_for_each_record(volume: Path) -> None:
    done = diloco("tape", "show", volume)
    assert done.exit_code == 0, done.output
    header, *rows = done.output.splitlines()
    assert header.split() == ["TIME", "EVENT", "STEP", "FRAGMENT", "UNIT", "DETAILS"]
    assert len(rows) == len(list(heads(volume / FOLDER)))
    events = {row.split()[2] for row in rows}
    assert {"segment", "join", "seed", "lease", "merge", "adopt"} <= events
    merge = next(head for head in merges(volume) if len(head["given"]) > 1)
    row = next(row for row in rows if merge["checksum"] in row)
    assert f"cosine {merge['cosine']:.3f}" in row
    assert f"from version {merge['base']}" in row
    assert all(
        f"{unit} {one['weight'] / sum(x['weight'] for x in merge['given'].values()):.1%}" in row for unit, one in merge["given"].items()
    )


def test_show_can_leave_out_all_but_merges_and_print_json(volume: Path) -> None:
    done = diloco("tape", "show", volume, "--merges", "-o", "json")
    shown = [json.loads(line) for line in done.output.splitlines()]
    assert [head for head in shown if head["type"] == "merge"] == merges(volume)
    assert {head["type"] for head in shown} <= {"merge", "skip"}


def test_show_reads_one_file(volume: Path) -> None:
    segment = segments(volume / FOLDER)[-1].path
    done = diloco("tape", "show", segment, "-o", "json")
    assert [json.loads(line) for line in done.output.splitlines()] == [record.head for record in RecordFile(segment, values=False)]


def test_what_is_no_tape_is_said(tmp_path: Path) -> None:
    done = diloco("tape", "show", tmp_path)
    assert (done.exit_code, f"no tape is in {tmp_path}" in done.output) == (1, True)


def test_a_file_of_something_else_is_no_tape_and_no_advice_is_given_to_cut_it(tmp_path: Path) -> None:
    file = tmp_path / "thesis.txt"
    file.write_text("years of work")
    done = diloco("tape", "show", file)
    assert (done.exit_code, f"{file} is no tape" in done.output, "truncate" in done.output) == (1, True, False)


def in_history(tmp_path: Path, *lines: str) -> Path:
    folder = tmp_path / FOLDER
    folder.mkdir()
    (folder / "history.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"n": 1}',
        '{"n": true, "at": 1, "type": "skip"}',
        '{"n": 1, "at": 1e300, "type": "skip"}',
        '{"n": 1, "at": 1, "type": []}',
    ],
    ids=["nested", "no time", "no number", "no such time", "no type"],
)
def test_a_damaged_line_of_the_history_is_left_out(tmp_path: Path, line: str) -> None:
    good = {"n": 2, "at": 1.5, "type": "skip", "t": 7, "message": "too few units"}
    done = diloco("tape", "show", in_history(tmp_path, line, json.dumps(good)))
    assert done.exit_code == 0, done.output
    [_, row] = done.output.splitlines()
    assert row.split(maxsplit=4)[2:] == ["skip", "7", "too few units"]


@pytest.mark.parametrize(
    ("kind", "lacks"),
    [("segment", "segment"), ("join", "attempt"), ("lease", "start"), ("leave", "holder"), ("adopt", "version"), ("refuse", "reason"),
     ("skip", "message"), ("merge", "given")],
)  # fmt: skip
def test_a_record_that_lacks_a_part_is_shown_as_damaged(tmp_path: Path, kind: str, lacks: str) -> None:
    done = diloco("tape", "show", in_history(tmp_path, json.dumps({"n": 1, "at": 1, "type": kind})))
    assert (done.exit_code, f"damaged: {lacks}: Field required" in done.output) == (0, True), done.output


def test_a_pipe_in_the_place_of_the_history_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    (folder / "00000001.tape").touch()
    os.mkfifo(folder / "history.jsonl")
    done = diloco("tape", "show", tmp_path)
    assert (done.exit_code, "history.jsonl cannot be read: it is no regular file" in done.output) == (1, True)


def test_an_adoption_is_of_a_version_that_was_made_before(volume: Path) -> None:
    made = {(merge["fragment"], merge["t"]): merge["n"] for merge in merges(volume)}
    adopted = [head for head in heads(volume / FOLDER) if head["type"] == "adopt"]
    assert adopted
    for head in adopted:
        assert head["version"] == 0 or made[head["fragment"], head["version"]] < head["n"]


def test_replay_gives_the_same_bytes_in_many_orders(volume: Path) -> None:
    done = diloco("replay", volume, "--orders", 20)
    assert done.exit_code == 0, done.output
    assert "all as the syncer had them" in done.output
    assert f"{len(merges(volume))} merges after snapshot-00000001-t0, in 20 orders: parameters and momenta " in done.output


def test_replay_says_which_merge_gives_other_bytes(volume: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(volume, changed)
    path = segments(changed / FOLDER)[-1].path
    records = list(RecordFile(path, values=True))
    third = [record for record in records if record.values is not None][2]
    assert third.values is not None
    third.values.view("<f4")[0] += 1.0
    with path.open("wb") as file:
        for record in records:
            write_record(file, record.head, memoryview(record.values) if record.values is not None else None)
    done = diloco("replay", changed)
    assert done.exit_code == EXIT_DIFFERS
    row = next(line for line in done.output.splitlines() if f"differs: {third.head['checksum']}" in line)
    assert row.split()[0] == str(third.head["t"])
    assert "other bytes than on the tape at outer steps" in done.output


def test_replay_without_the_snapshot_says_what_is_missing(volume: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    shutil.copytree(volume / FOLDER, alone / FOLDER)
    done = diloco("replay", alone)
    assert done.exit_code == 1
    assert "no snapshot in" in done.output
    again = diloco("replay", alone, "--from", volume / "snapshots" / "snapshot-00000001-t0")
    assert (again.exit_code, "all as the syncer had them" in again.output) == (0, True)
