"""[idle-drift] Parameters of a job that is not trained, after 200 merges of each fragment: how many elements have other bits. None may.

A unit with float32 parameters seeds the job with values that no shorter type holds; a unit with bfloat16 and one with float16 take part.
All step, report tokens, answer every pull and adopt every broadcast over loopback, but train nothing. This runs once for each compression.
A model of a short type adopts rounded values: measured against anything but these, its contribution would be a step that was never taken.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from builders.idle_job import FRAGMENTS, run_idle_job

from benchmarks.figure import Figure

COMPRESSIONS = ("None", "BFloat16", "Int4")


@dataclass(frozen=True, slots=True)
class Size:
    merges: int
    """Merges of each fragment. Not every unit answers in time for each."""
    least: int
    """Merges of each fragment in which every unit must have taken part. With fewer, nothing was measured."""


FULL = Size(merges=500, least=200)
SMOKE = Size(merges=20, least=1)


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    drifted: dict[str, int] = {}
    fewest = size.merges
    for compression in COMPRESSIONS:
        logging.disable(logging.INFO)  # syncer and learners run in this process and log a line for each outer step that merges nothing
        try:
            with tempfile.TemporaryDirectory() as directory:
                began, ended, taken = run_idle_job(Path(directory), (torch.bfloat16, torch.float16), compression, size.merges)
        finally:
            logging.disable(logging.NOTSET)
        fewest = min(fewest, taken // FRAGMENTS)
        drifted[compression] = sum(int((began[name].view(np.uint32) != ended[name].view(np.uint32)).sum()) for name in began)
    value = sum(drifted.values())
    details = {"drifted": drifted, "merges": fewest}
    yield Figure("idle-drift", value, "elements", 0, not value and fewest >= size.least, len(COMPRESSIONS), details)
