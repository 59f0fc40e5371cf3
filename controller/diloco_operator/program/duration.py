"""Durations on the command line, in Go's style: `5s`, `10m`, `1h`."""

from __future__ import annotations

from typing import Any

import click

from diloco_operator.api.durations import parse_duration


class Duration(click.ParamType[float]):
    """Converts a duration to seconds."""

    name = "duration"

    def __init__(self, *, above_zero: bool = False) -> None:
        """`above_zero`: refuse 0s."""
        self._above_zero = above_zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = value if isinstance(value, float) else parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if self._above_zero and not seconds:
            self.fail("it must be above 0", param, ctx)
        return seconds
