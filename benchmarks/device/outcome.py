"""What a program in a job showed of its adapter, compared with the same program alone."""

from __future__ import annotations

import argparse
import math
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.device.part import print_result
from benchmarks.device.script import EQUAL


@dataclass(frozen=True, slots=True)
class Outcome:
    program: str
    equal: int
    """Steps before the first adoption after which the parameters are the same bit for bit with and without a session."""
    repeats: bool
    """Two runs without a session give the same parameters, so that any difference comes from the session."""
    staged: bool
    """The values that were read are the parameters after that step."""
    adopted: bool
    """After the adoption the parameters are the adopted values."""
    waits: int
    """Calls that wait for the device, in boundaries that move nothing."""
    waits_of_adoption: int
    """Such calls in the boundary of the adoption."""
    waits_seen: int | None
    """All such calls, including the program's own. None if nothing counts them."""

    @property
    def good(self) -> bool:
        """Whether the session changed nothing but what was adopted, and made no quiet step wait."""
        # A program on a GPU waits for it somewhere. A profiler that saw no such call has not worked.
        counted = self.waits_seen is None or self.waits_seen > 0
        return self.equal == EQUAL and self.staged and self.adopted and counted and not self.waits

    def print(self) -> None:
        print_result(
            self.program, self.equal, f"steps of {EQUAL} equal", repeats=self.repeats, staged_equal=self.staged, adopted_equal=self.adopted,
            waits_in_quiet_steps=self.waits, waits_of_adoption=self.waits_of_adoption, waits_seen=self.waits_seen,
        )  # fmt: skip


def look_at_each(framework: str, kinds: Iterable[str], outcome: Callable[[str, str], Outcome]) -> int:
    """Run `outcome(kind, device)` for each kind on the command line, and return the exit status: 1 if one fails or is not good."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="+", choices=list(kinds))
    parser.add_argument("--device", required=True)
    given = parser.parse_args()
    good = True
    for kind in given.kinds:
        try:
            checked = outcome(kind, given.device)
            checked.print()
            good = good and checked.good
        except Exception as error:  # noqa: BLE001 - the line says it, and the next kind begins
            traceback.print_exc()
            print_result(f"{framework} {kind}", math.nan, f"steps of {EQUAL} equal", error=f"{type(error).__name__}: {error}"[:500])
            good = False
    return 0 if good else 1
