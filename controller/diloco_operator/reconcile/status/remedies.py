"""What a person can do for a pool, in one sentence with why it lacks hardware. Pure.

See docs/decisions/0176-explain-and-doctor.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from diloco_operator.placement.request import HELP


def with_remedies(causes: str, remedies: Sequence[str]) -> str:
    """Join causes and remedies for Events, tables and logs; `status.pools[]` has both apart."""
    return f"{causes}{HELP}{'; '.join(remedies)}" if remedies else causes
