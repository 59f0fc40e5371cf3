"""What one program showed of an adapter."""

from __future__ import annotations

import argparse
import math
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.device.part import say
from benchmarks.device.script import EQUAL


@dataclass(frozen=True, slots=True)
class Outcome:
    program: str
    equal: int
    """Steps before the first adoption after which the parameters are the same bit for bit with and without a session."""
    repeats: bool
    """Two runs without a session give the same parameters, so that a difference is one of the session."""
    staged: bool
    """What was read is what the parameters were after that step."""
    adopted: bool
    """After the adoption the parameters are what was adopted."""
    waits: int
    """Calls that wait for the device in boundaries that move nothing."""
    waits_of_adoption: int
    waits_seen: int | None
    """All such calls, those of the program among them; None: nothing here counts them."""

    @property
    def good(self) -> bool:
        """Return whether the session has changed nothing but what was adopted."""
        # A program on a GPU waits for it somewhere. Where a profiler saw no such call, it has counted nothing.
        counted = self.waits_seen is None or self.waits_seen > 0
        return self.equal == EQUAL and self.staged and self.adopted and counted and not self.waits

    def say(self) -> None:
        say(
            self.program, self.equal, f"steps of {EQUAL} equal", repeats=self.repeats, staged_equal=self.staged, adopted_equal=self.adopted,
            waits_in_quiet_steps=self.waits, waits_of_adoption=self.waits_of_adoption, waits_seen=self.waits_seen,
        )  # fmt: skip


def look_at_each(framework: str, kinds: Iterable[str], outcome: Callable[[str, str], Outcome]) -> int:
    """Run `outcome(kind, device)` for each kind on the command line, and return the exit status: 1 when one fails or is not good."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="+", choices=list(kinds))
    parser.add_argument("--device", required=True)
    given = parser.parse_args()
    good = True
    for kind in given.kinds:
        try:
            found = outcome(kind, given.device)
            found.say()
            good = good and found.good
        except Exception as error:  # noqa: BLE001 - the line says it, and the next kind begins
            traceback.print_exc()
            say(f"{framework} {kind}", math.nan, f"steps of {EQUAL} equal", error=f"{type(error).__name__}: {error}"[:500])
            good = False
    return 0 if good else 1
