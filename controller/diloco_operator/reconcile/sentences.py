"""What there is to say to people, as values until it goes into a status, an Event or a condition. Pure.

A decision returns a value with the fields of its sentence; a module whose name ends with `_words` has the class, and so the text.

See docs/decisions/0231-states-reasons-words.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Sentence(Protocol):
    """What a decision has found, with all that its words need."""

    def words(self) -> str:
        """Say it to people, and what they can do about it."""
        ...


@dataclass(frozen=True, slots=True)
class Quoted:
    """Words that stand already: in a status, or in what a scheduler, kubelet, autoscaler or API server says."""

    text: str

    def words(self) -> str:
        return self.text


NO_WORDS = Quoted("")
"""There is nothing to say."""
