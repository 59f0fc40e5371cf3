from pathlib import Path

import numpy as np
import pytest
from diloco.trainers.text import ByteCorpus, read_bytes, source_files, split_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(60):
        path = tmp_path / f"package{number % 3}" / f"module{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(f"value = {number}\n".encode() * 20)
    return tmp_path


def test_the_standard_library_gives_the_same_text_every_time() -> None:
    train, held_out = split_files()
    assert (train, held_out) == split_files()
    assert len(train) > 10 * len(held_out) > 0
    assert sum(path.stat().st_size for path in held_out) > 32_768
    assert sum(path.stat().st_size for path in train) > 4_000_000


def test_held_out_files_are_never_trained_on(folder: Path) -> None:
    train, held_out = split_files(folder)
    assert held_out
    assert not set(train) & set(held_out)
    assert sorted(train + held_out) == sorted(folder.rglob("*.py"))


def test_the_order_depends_on_relative_paths_only(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    moved = tmp_path_factory.mktemp("elsewhere") / "stdlib"
    folder.rename(moved)
    here = [path.relative_to(moved) for path in source_files(moved)]
    moved.rename(folder)
    assert here == [path.relative_to(folder) for path in source_files(folder)]


@pytest.mark.parametrize("part", ["test", "tests", "site-packages", "__pycache__"])
def test_what_not_every_machine_has_is_left_out(folder: Path, part: str) -> None:
    before = source_files(folder)
    (folder / part / "deep").mkdir(parents=True)
    (folder / part / "deep" / "more.py").write_text("x = 1\n")
    (folder / "package0" / "notes.txt").write_text("no source")
    assert source_files(folder) == before


def test_a_folder_without_source_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="--corpus"):
        source_files(tmp_path)


def test_the_cap_cuts_the_text_not_its_order(folder: Path) -> None:
    files = source_files(folder)
    whole = read_bytes(files, 10**9)
    np.testing.assert_array_equal(read_bytes(files, 777), whole[:777])


def corpus(windows: int = 5, context: int = 4, seed: int = 0) -> ByteCorpus:
    train = np.arange(windows * context + 1, dtype=np.uint8)
    return ByteCorpus(train, np.arange(100, 100 + 2 * context + 1, dtype=np.uint8), context=context, seed=seed)


def test_an_epoch_goes_through_every_window_once_and_the_next_in_another_order() -> None:
    starts = corpus(windows=20).batch(np.arange(40))[:, 0]
    assert sorted(starts[:20]) == sorted(starts[20:]) == list(range(0, 80, 4))
    assert starts[:20].tolist() != starts[20:].tolist()


def test_a_sample_is_a_function_of_its_number_and_the_seed() -> None:
    numbers = np.array([3, 11, 3])
    rows = corpus(windows=20).batch(numbers)
    assert rows.shape == (3, 5)
    np.testing.assert_array_equal(rows[0], rows[2])
    np.testing.assert_array_equal(rows[0] + np.uint8(0), corpus(windows=20).batch(np.array([3]))[0])
    np.testing.assert_array_equal(np.diff(rows.astype(int), axis=1), np.ones((3, 4)))  # bytes that follow one another
    assert not np.array_equal(corpus(windows=20).batch(np.arange(20)), corpus(windows=20, seed=1).batch(np.arange(20)))


def test_held_out_windows_come_once_in_order() -> None:
    batches = list(corpus().held_out(batch=1))
    assert [batch[:, 0].tolist() for batch in batches] == [[100], [104]]
    assert corpus().held_out_tokens == 8


def test_too_little_text_is_refused() -> None:
    with pytest.raises(ValueError, match="held-out text has 3 tokens"):
        ByteCorpus(np.zeros(10, np.uint8), np.zeros(3, np.uint8), context=4, seed=0)
