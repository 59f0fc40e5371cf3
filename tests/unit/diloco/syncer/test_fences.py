from pathlib import Path

import pytest
from diloco.syncer.fences import FILE, FencesError, load_fences, save_fences


def test_fences_outlive_the_process_but_not_the_job(tmp_path: Path) -> None:
    assert load_fences(tmp_path / "new", "job-1") == {}
    save_fences(tmp_path / "new", "job-1", {"u": 3})
    assert load_fences(tmp_path / "new", "job-1") == {"u": 3}
    assert load_fences(tmp_path / "new", "job-2") == {}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"job": "j", "attempts": {"u": "x"}}', '{"job": "j", "attempts": []}'])
def test_damaged_fences_are_not_taken_for_none(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(FencesError, match=FILE):
        load_fences(tmp_path, "j")
