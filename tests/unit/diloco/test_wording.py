"""Plural forms, and names of which only some are listed."""

from __future__ import annotations

import pytest
from diloco.wording import and_more, plural


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


def test_some_names_are_listed_and_the_others_are_counted() -> None:
    assert [and_more(["a/b"], count) for count in (0, 1, 2, 3)] == ["a/b", "a/b", "a/b and 1 more", "a/b and 2 more"]
    assert and_more(["a", "b"], 5) == "a, b and 3 more"
