"""What keeps jobs from running on a cluster. PURE: `commands.doctor_reading` reads the facts, and `examine(facts)` makes findings of them.

See docs/decisions/0176-explain-and-doctor.md.
"""

from diloco_cli.checks.examination import examine
from diloco_cli.checks.model import Check, Facts, Finding, Level, Reach, Review, Right, Unreadable

__all__ = ["Check", "Facts", "Finding", "Level", "Reach", "Review", "Right", "Unreadable", "examine"]
