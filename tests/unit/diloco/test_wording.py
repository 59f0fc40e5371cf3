"""Plural forms."""

from __future__ import annotations

import pytest
from diloco.wording import plural


@pytest.mark.parametrize(
    ("count", "words", "text"),
    [
        (0, ("unit",), "0 units"),
        (1, ("unit",), "1 unit"),
        (2, ("unit",), "2 units"),
        (0, ("learner contributes", "learners contribute"), "0 learners contribute"),
        (1, ("learner contributes", "learners contribute"), "1 learner contributes"),
        (2, ("learner contributes", "learners contribute"), "2 learners contribute"),
    ],
)
def test_words_follow_the_count(count: int, words: tuple[str, ...], text: str) -> None:
    assert plural(count, *words) == text
