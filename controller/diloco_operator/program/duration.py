"""Durations on the command line, in Go's style: `5s`, `10m`, `1h`."""

from __future__ import annotations

from typing import Any

import click

from diloco_operator.api.durations import parse_duration


class Duration(click.ParamType[float]):
    """Gives seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return value if isinstance(value, float) else parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
