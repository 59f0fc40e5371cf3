"""How the last attempt of a unit failed, as `status.units[].lastFailure` has it: written and read here only. Pure.

See docs/decisions/0231-states-reasons-words.md.
"""

from __future__ import annotations

from typing import NamedTuple

from diloco_operator.kube.fields import clip

_LIMIT = 500
"""Characters that a record keeps."""
_BETWEEN = ": "


class LastFailure(NamedTuple):
    """Both are "" where there was none, or where a long status has no room for it."""

    reason: str
    message: str

    def written(self) -> str:
        """For a status. It stays when the unit's message speaks of something else, and when the Events have expired."""
        return clip(f"{self.reason}{_BETWEEN}{self.message}", _LIMIT)


def read_last_failure(text: str) -> LastFailure:
    """From a status."""
    reason, _, message = text.partition(_BETWEEN)
    return LastFailure(reason, message)
