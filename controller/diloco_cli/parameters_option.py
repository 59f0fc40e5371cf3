"""`7B` on the command line: a number of parameters."""

from __future__ import annotations

import re
from typing import Any, Final

import click

SCALES: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}
NUMBER: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kMGBT]?)")


class Parameters(click.ParamType[int]):
    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        number = NUMBER.fullmatch(str(value))
        if number is None or float(number[1]) * SCALES[number[2]] < 1:
            self.fail(f"{value!r} is no number of parameters; write it as 350M or 7B", param, ctx)
        return round(float(number[1]) * SCALES[number[2]])
