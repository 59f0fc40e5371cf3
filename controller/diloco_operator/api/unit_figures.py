"""Figures of a unit that its syncer reports, each declared once. From this declaration come the field of the report and how it is read from
the wire, the field of `status.units[]`, what stays on record, the CRD, docs/api.md, and the columns of the tables.

A figure has the same name as its field in the wire's UnitReport.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

from pydantic import Field, create_model
from pydantic.alias_generators import to_camel

from diloco_operator.api.base import ApiModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """How a figure gets from the report to people."""

    largest: int | float | bool | None
    """The value with the longest text that can be expected; a status keeps room for it. None if another rule bounds the figure."""
    heading: str = ""
    """Heading of its column, "" if it has no column of its own."""
    wide: bool = False
    """Its column is in wide tables only."""
    digits: int | None = None
    """Decimal places in status. None if it is not a fraction."""
    kept_when_complete: bool = False
    """When the job is complete, a unit's last value stays for the final account."""
    speed: bool = False
    """It is 0 for an attempt that does not run."""
    only_while_training: bool = False
    """It says nothing about a unit that does not train: its column is empty then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFigures:
    """The figures, as a report has them. A figure whose default is None is absent in status until it is reported, so a new figure does not
    make the operator write every job's status."""

    tokens_per_second: Annotated[
        float,
        Field(ge=0, description="Moving average, as the syncer measures it."),
        Figure(largest=1234567890.1, heading="TOKENS/S", digits=1, speed=True, only_while_training=True),
    ] = 0.0
    weight: Annotated[
        float,
        Field(
            ge=0,
            description="Its share of the recent merges of the job, 0 to 1; a merge without it counts 0. Those of all units sum to 1.",
        ),
        Figure(largest=0.1234, heading="WEIGHT", digits=4, kept_when_complete=True),
    ] = 0.0
    merge_share: Annotated[
        float | None,
        Field(
            ge=0,
            description="Share of the recent merges of the job that have its contribution, 0 to 1; absent: none has since the syncer's "
            "process began.",
        ),
        Figure(largest=0.12, heading="MERGES", wide=True, digits=2, only_while_training=True),
    ] = None
    staleness: Annotated[
        int,
        Field(ge=0, description="Outer steps since its last contribution, of any attempt; before the first, since it joined."),
        Figure(largest=10**9, heading="STALE", only_while_training=True),
    ] = 0
    tokens: Annotated[
        int,
        Field(ge=0, description="Tokens that were committed to the global parameters, all attempts."),
        Figure(largest=10**18, heading="TOKENS", wide=True, kept_when_complete=True),
    ] = 0
    steps: Annotated[
        int,
        Field(ge=0, description="Local steps that were committed, all attempts."),
        Figure(largest=10**15, heading="STEPS", wide=True, kept_when_complete=True),
    ] = 0
    steps_per_sync: Annotated[
        int | None,
        Field(
            ge=1,
            description="Local steps in its last merged contribution: about training.syncInterval where units are equally fast, at most "
            "about 1.5 times that.",
        ),
        Figure(largest=10**9, heading="STEPS/SYNC", wide=True),
    ] = None
    own_data: Annotated[
        bool | None,
        Field(description="Its program feeds itself: its tokens are counted, its samples are not."),
        Figure(largest=True),
    ] = None
    refused: Annotated[
        dict[str, int],
        Field(description="Its joins and contributions that the syncer refused, by reason, all attempts."),
        Figure(largest=None, heading="REFUSED", wide=True, kept_when_complete=True),
    ] = field(default_factory=dict)


_TYPES = get_type_hints(UnitFigures, include_extras=True)
_UNREPORTED = asdict(UnitFigures())

FIGURES: Mapping[str, Figure] = MappingProxyType(
    {name: each for name, hint in _TYPES.items() for each in get_args(hint) if isinstance(each, Figure)}
)
"""Name -> figure, in the order of the tables."""
KEYS: Mapping[str, str] = MappingProxyType({name: to_camel(name) for name in FIGURES})
"""Name -> field of status.units[]."""
DEFAULTS: Mapping[str, Any] = MappingProxyType({KEYS[name]: value for name, value in _UNREPORTED.items() if value is not None})
"""Field of status.units[] -> its value before anything is reported. Figures that are absent then are left out."""
FIGURES_BYTES = sum(len(f',"{KEYS[name]}":{json.dumps(figure.largest)}') for name, figure in FIGURES.items() if figure.largest is not None)
"""The most bytes that the figures of a unit take in a status, without figures that another rule bounds."""

if TYPE_CHECKING:
    FiguresModel = UnitFigures
else:  # a model with the fields of a dataclass, which mypy cannot follow
    FiguresModel = create_model("FiguresModel", __base__=ApiModel, **{name: (hint, _UNREPORTED[name]) for name, hint in _TYPES.items()})
