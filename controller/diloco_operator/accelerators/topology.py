"""Topologies of TPU slices. Pure."""

from __future__ import annotations

import itertools
import math
import re

_TOPOLOGY = re.compile(r"^[1-9][0-9]{0,2}(x[1-9][0-9]{0,2}){1,2}$")


def parse_topology(text: str) -> tuple[int, ...]:
    """Return the sizes of a topology: `2x2x4` -> (2, 2, 4). Raises ValueError if the text is no topology."""
    if not _TOPOLOGY.fullmatch(text):
        raise ValueError(f"{text!r} is not a topology: write sizes with x between them, such as 2x4 or 2x2x2")
    return tuple(int(size) for size in text.split("x"))


def chip_count(topology: str) -> int:
    """Return how many chips a slice has: the product of its sizes."""
    return math.prod(parse_topology(topology))


def torus(*pod: int, max_chips: int) -> dict[str, tuple[int, ...]]:
    """Return the topologies of a 3-D TPU with 4 chips per host: four small ones, then all AxBxC of 4x4x4 cubes with A <= B <= C that fit
    into the pod."""
    small = ["2x2x1", "2x2x2", "2x2x4", "2x4x4"]
    large = [
        sizes
        for sizes in itertools.product(*(range(4, size + 1, 4) for size in pod))
        if list(sizes) == sorted(sizes) and math.prod(sizes) <= max_chips
    ]
    large.sort(key=lambda sizes: (math.prod(sizes), sizes))
    return dict.fromkeys([*small, *("x".join(map(str, sizes)) for sizes in large)], (4,))


MESH = {"1x1": (1,), "2x2": (4,), "2x4": (4, 8), "4x4": (4,), "4x8": (4,), "8x8": (4,), "8x16": (4,), "16x16": (4,)}
"""Topology of a 2-D TPU -> the chips that its hosts may have."""
