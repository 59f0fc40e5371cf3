from pathlib import Path

import pytest
from diloco.protocol.auth import authorized, credentials, read_secret


def test_the_secret_opens_and_nothing_else_does() -> None:
    assert authorized(credentials("s3cret"), "s3cret")
    assert not authorized(credentials("s3cre"), "s3cret")
    assert not authorized(credentials(""), "s3cret")
    assert not authorized((("other", "s3cret"),), "s3cret")
    assert not authorized(None, "s3cret")


def test_a_secret_file_may_end_with_a_newline(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    assert read_secret(tmp_path / "token") == "s3cret"


@pytest.mark.parametrize(("content", "message"), [(" \n", "is empty"), ("schlüssel", "printable ASCII"), ("a\nb", "printable ASCII")])
def test_a_secret_that_metadata_cannot_carry_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "token").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_secret(tmp_path / "token")
