"""Numbers on the command line: none is NaN or infinite. `7B`, `350M`: numbers of parameters."""

from __future__ import annotations

import math
import re
from typing import Any, Final

import click
from diloco_operator.kube.quantities import quantity

SCALES: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}
NUMBER: Final = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)([kMGBT]?)", re.ASCII)


class Finite(click.FloatRange):
    """A number of a range; click lets NaN into every one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is no finite number", param, ctx)
        return found


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
    """A quantity of Kubernetes above 0, as it was written."""

    name = "quantity"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            if quantity(str(value)) <= 0:
                self.fail(f"{value!r} is not above 0", param, ctx)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)
