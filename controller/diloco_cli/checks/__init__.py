"""PURE: what stands between jobs and a cluster. `examine(facts)` makes findings of what was read; `commands.doctor_reading` reads it.

See docs/decisions/0176-explain-and-doctor.md.
"""

from diloco_cli.checks.examination import examine
from diloco_cli.checks.model import Check, Facts, Finding, Level, Reach, Review, Right, Unreadable

__all__ = ["Check", "Facts", "Finding", "Level", "Reach", "Review", "Right", "Unreadable", "examine"]
