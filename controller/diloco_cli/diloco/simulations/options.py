"""Types of the options of `diloco simulate`: rates, numbers of units, and when nodes come."""

from __future__ import annotations

from typing import Any

import click
from diloco_operator.api.durations import parse_duration
from diloco_operator.api.spec import MAX_LEARNERS

from diloco_cli.parameters_option import NUMBER, SCALES, Finite


def rate_text(bits: float) -> str:
    """Write bits a second as `3.4 Gbit/s`."""
    for unit in ("bit/s", "kbit/s", "Mbit/s", "Gbit/s"):
        if bits < 1000:
            return f"{bits:.0f} {unit}" if bits >= 100 else f"{bits:.1f} {unit}"
        bits /= 1000
    return f"{bits:.1f} Tbit/s"


class Rate(click.ParamType[float]):
    """`5Gbit/s`, converted to bits a second."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        number = NUMBER.fullmatch(str(value).removesuffix("bit/s"))
        if not str(value).endswith("bit/s") or number is None or not float(number[1]):
            self.fail(f"{value!r} is no rate; write it as 800Mbit/s or 2.5Gbit/s", param, ctx)
        return float(number[1]) * SCALES[number[2]]


class Units(click.ParamType[tuple[int, ...]]):
    """`2,4,8`, converted to numbers of units in ascending order."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(part.isascii() and part.isdecimal() and 1 <= int(part) <= MAX_LEARNERS for part in parts):
            self.fail(f"{value!r}: write numbers from 1 to {MAX_LEARNERS} as 2,4,8", param, ctx)
        return tuple(sorted({int(part) for part in parts}))


LOST_SHARE = Finite(min=0.0, max=1.0, max_open=True)
LOST_HELP = "Share of TCP segments that do not arrive; they are sent again."


class ForPlace(click.ParamType[tuple[str, float]]):
    """`us-east1=40ms` is a value for a zone, region or cluster; `40ms` is the value for all places without one of their own."""

    def __init__(self, value: click.ParamType[float]) -> None:
        self._value = value
        self.name = value.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        place, equals, text = str(value).rpartition("=")
        if equals and not place:
            self.fail(f"{value!r}: name the place before =, or leave it out for all", param, ctx)
        return place, self._value.convert(text, param, ctx)


class JoinTime(click.ParamType[tuple[str, float]]):
    """`h100-*=2h`, converted to a pattern of node names and the seconds after which these nodes come."""

    name = "nodes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        pattern, equals, when = str(value).partition("=")
        try:
            if not pattern or not equals:
                raise ValueError("write it as NODES=TIME, such as h100-*=2h")
            return pattern, parse_duration(when)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)
