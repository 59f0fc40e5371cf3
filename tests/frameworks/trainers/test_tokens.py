"""Token files: raw, numpy, parquet and text; local and remote; whole and broken."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tokenizers
from diloco.trainers import llama_options
from diloco.trainers.tokens import DataError, TokenSource, check_vocabulary
from diloco.trainers.windows import TokenWindows

WORDS = {"[UNK]": 0, "to": 1, "be": 2, "or": 3, "not": 4, "\n": 5}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A word-level tokenizer.json, as a user has one from training or a model's folder."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.Replace(" ", "")
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"to|be|or|not|\n"), "isolated")
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def parquet(path: Path, **columns: Sequence[Any]) -> str:
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return str(path)


def test_a_raw_file_is_mapped_as_it_lies(tmp_path: Path, cache: Path) -> None:
    np.arange(1000, dtype="<u2").tofile(tmp_path / "tokens.bin")
    tokens = TokenSource(str(tmp_path / "tokens.bin"), cache=cache).read()
    assert isinstance(tokens, np.memmap)
    np.testing.assert_array_equal(tokens, np.arange(1000))
    assert TokenSource(f"file://{tmp_path}/tokens.bin", token_type="uint32", cache=cache).read().size == 500
    assert not cache.exists()


def test_a_numpy_file_is_mapped(tmp_path: Path, cache: Path) -> None:
    np.save(tmp_path / "tokens.npy", np.arange(10, dtype=np.uint32))
    tokens = TokenSource(str(tmp_path / "tokens.npy"), cache=cache).read()
    assert isinstance(tokens, np.memmap)
    np.testing.assert_array_equal(tokens, np.arange(10))


def test_a_remote_file_is_copied_once_for_each_state_of_it(cache: Path) -> None:
    fs = fsspec.filesystem("memory")
    source = TokenSource("memory://tokens/a.bin", cache=cache)
    for values in ([1, 2, 3], [4, 5]):
        fs.pipe_file("/tokens/a.bin", np.array(values, "<u2").tobytes())
        np.testing.assert_array_equal(source.read(), values)
        np.testing.assert_array_equal(source.read(), values)
    assert len(list(cache.iterdir())) == 2


def test_text_is_tokenised_once(tmp_path: Path, cache: Path, tokenizer: Path) -> None:
    (tmp_path / "play.txt").write_text("to be\nor not\n" * 3)
    source = TokenSource(str(tmp_path / "play.txt"), tokenizer, cache=cache)
    np.testing.assert_array_equal(source.read(), [1, 2, 5, 3, 4, 5] * 3)
    (made,) = cache.iterdir()
    written = made.stat().st_mtime_ns
    assert source.read().dtype == np.uint16
    assert [file.stat().st_mtime_ns for file in cache.iterdir()] == [written]


def test_another_tokenizer_makes_other_tokens(tmp_path: Path, cache: Path, tokenizer: Path) -> None:
    (tmp_path / "play.txt").write_text("not")
    before = TokenSource(str(tmp_path / "play.txt"), tokenizer, cache=cache).read()
    changed = json.loads(tokenizer.read_text())
    changed["model"]["vocab"] |= {"not": 7, "nor": 4}
    tokenizer.write_text(json.dumps(changed))
    after = TokenSource(str(tmp_path / "play.txt"), tokenizer, cache=cache).read()
    assert (list(before), list(after)) == ([4], [7])


def test_parquet_rows_follow_one_another(tmp_path: Path, cache: Path, tokenizer: Path) -> None:
    ids = parquet(tmp_path / "ids.parquet", input_ids=[[1, 2], None, [], [70_000]], text=["a", "b", "c", "d"])
    np.testing.assert_array_equal(TokenSource(ids, cache=cache).read(), [1, 2, 70_000])
    text = parquet(tmp_path / "text.parquet", text=["to be", None, "", "or not"], other=["to"] * 4)
    np.testing.assert_array_equal(TokenSource(text, tokenizer, cache=cache).read(), [1, 2, 3, 4])
    np.testing.assert_array_equal(TokenSource(text, tokenizer, column="other", cache=cache).read(), [1] * 4)


def test_large_numbers_of_rows_are_written_in_parts(tmp_path: Path, cache: Path) -> None:
    rows = [[n % 60_000, 1] for n in range(5_000)]  # five batches of 1024 rows
    tokens = TokenSource(parquet(tmp_path / "ids.parquet", tokens=rows), cache=cache).read()
    np.testing.assert_array_equal(tokens, np.array(rows).ravel())


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.bin", b"abc", {}, "has 3 bytes, which is no number of uint16 tokens"),
        ("a.bin", b"", {}, "has 0 bytes"),
        ("a.bin", b"abcd", {"token_type": "int8"}, "'int8' is no type of tokens: use one of uint8, uint16, uint32"),
        ("a.npy", b"abc", {}, r"a\.npy is no \.npy file of numbers"),
        ("a.txt", b"to be", {}, r"a\.txt is text: name a tokenizer\.json \(--tokenizer\)"),
    ],
)
def test_files_that_hold_no_tokens_are_named(tmp_path: Path, name: str, content: bytes, options: dict[str, str], message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        TokenSource(str(tmp_path / name), cache=tmp_path / "cache", **options).read()  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [np.arange(3.0), np.arange(3, dtype=np.int64), np.zeros((2, 2), np.uint16)])
def test_an_array_that_holds_no_tokens_is_refused(tmp_path: Path, values: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(DataError, match="tokens are one axis of uint8, uint16, uint32"):
        TokenSource(str(tmp_path / "a.npy")).read()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"words": ["to"]}, "has no column input_ids, tokens, text or content; it has words"),
        ({"text": ["to"]}, r"column text of .* is text: name a tokenizer\.json"),
        ({"tokens": [[-1]]}, "values that are no tokens"),
        ({"tokens": [[0.5]]}, "values that are no tokens"),
    ],
)
def test_a_parquet_file_without_tokens_is_refused_and_leaves_nothing(
    tmp_path: Path, cache: Path, columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        TokenSource(parquet(tmp_path / "a.parquet", **columns), cache=cache).read()
    assert list(cache.iterdir()) == []


def test_a_tokenizer_that_is_none_is_named(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "a.txt").write_text("to be")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer\.json is no tokenizer\.json"):
        TokenSource(str(tmp_path / "a.txt"), tmp_path / "tokenizer.json", cache=cache).read()


def test_a_token_that_the_model_does_not_know_is_refused() -> None:
    tokens = np.array([1, 255, 3], np.uint16)
    check_vocabulary("a.bin", tokens, 256)
    with pytest.raises(DataError, match=r"a\.bin has token 255, and the model knows 255 tokens: set --vocabulary"):
        check_vocabulary("a.bin", tokens, 255)


# --- by the trainers' flags ---------------------------------------------------------------------------------------------
def read(*flags: str) -> TokenWindows[Any]:
    return llama_options.parse("trainer", ["--alone", "--steps", "1", "--context", "4", *flags]).read_corpus()


def test_the_last_tokens_are_held_out(tmp_path: Path) -> None:
    np.arange(100, dtype="<u2").tofile(tmp_path / "a.bin")
    corpus = read("--data", str(tmp_path / "a.bin"), "--held-out-tokens", "8")
    assert [list(row) for batch in corpus.held_out() for row in batch] == [[91, 92, 93, 94, 95], [95, 96, 97, 98, 99]]
    # 91 tokens are left: 22 windows of 4, each with the first token of the next one.
    seen = corpus.batch(np.arange(22, dtype=np.int64))
    assert sorted(row[0] for row in seen) == list(range(0, 88, 4))


def test_other_data_can_be_held_out(tmp_path: Path) -> None:
    np.arange(100, dtype="<u2").tofile(tmp_path / "a.bin")
    np.full(9, 7, "<u2").tofile(tmp_path / "b.bin")
    corpus = read("--data", str(tmp_path / "a.bin"), "--held-out", str(tmp_path / "b.bin"))
    assert (corpus.windows, corpus.held_out_windows, corpus.held_out_tokens) == (24, 2, 8)


def test_data_with_less_than_one_window_is_refused_by_its_number_of_tokens(tmp_path: Path) -> None:
    np.arange(9, dtype="<u2").tofile(tmp_path / "short.bin")
    np.save(tmp_path / "empty.npy", np.empty(0, np.uint16))
    short, empty = ["--data", str(tmp_path / "short.bin")], str(tmp_path / "empty.npy")
    with pytest.raises(ValueError, match="the training text has 0 tokens, and a window of context 4 takes 5"):
        read(*short, "--held-out-tokens", "8")
    with pytest.raises(ValueError, match="the training text has 0 tokens"):
        read("--data", empty)
    with pytest.raises(ValueError, match="the held-out text has 0 tokens"):
        read(*short, "--held-out", empty)


def test_without_data_the_text_that_every_machine_has_is_trained_on() -> None:
    assert read("--held-out-tokens", "40").held_out_windows == 10


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tokenizer", "t.json"], "--tokenizer is for --data"),
        (["--micro-batch", "9"], "--micro-batch must be from 1 to --batch 8, got 9"),
        (["--batch", "0"], "--batch must be at least 1"),
        (["--config", "missing.json"], "missing.json"),
        (["--vocabulary", "0"], "vocabulary must be at least 1, got 0"),
    ],
)
def test_flags_that_cannot_be_say_why(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        llama_options.parse("trainer", ["--alone", "--steps", "1", *flags])
    assert message in capsys.readouterr().err
