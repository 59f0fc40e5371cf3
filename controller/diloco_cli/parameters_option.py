"""Types of options for numbers: finite ones, numbers of parameters such as `7B`, and Kubernetes quantities."""

from __future__ import annotations

import math
import re
from typing import Any, Final

import click
from diloco_operator.kube.quantities import quantity

SCALES: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}
NUMBER: Final = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)([kMGBT]?)", re.ASCII)


class Finite(click.FloatRange):
    """A finite number in a range. click would let NaN into every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number", param, ctx)
        return number


class Parameters(click.ParamType[int]):
    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        number = NUMBER.fullmatch(str(value))
        if number is None or float(number[1]) * SCALES[number[2]] < 1:
            self.fail(f"{value!r} is no number of parameters; write it as 350M or 7B", param, ctx)
        return round(float(number[1]) * SCALES[number[2]])


class Quantity(click.ParamType[str]):
    """A Kubernetes quantity above 0, kept as it was written."""

    name = "quantity"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            if quantity(str(value)) <= 0:
                self.fail(f"{value!r} is not above 0", param, ctx)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)
