"""How the last attempt of a unit failed: `status.units[].lastFailure`. Only this module writes and reads its text. Pure.

See docs/decisions/0231-states-reasons-words.md.
"""

from __future__ import annotations

from typing import NamedTuple

from diloco_operator.kube.fields import clip

_LIMIT = 500
"""Characters that a record keeps."""
_BETWEEN = ": "


class LastFailure(NamedTuple):
    """Both are "" if no attempt failed, or if a long status has no room for the failure."""

    reason: str
    message: str

    def written(self) -> str:
        """The text for status. It outlives the unit's message and the Events about the failure."""
        return clip(f"{self.reason}{_BETWEEN}{self.message}", _LIMIT)


def read_last_failure(text: str) -> LastFailure:
    """Read the text from a status."""
    reason, _, message = text.partition(_BETWEEN)
    return LastFailure(reason, message)
