"""The lines of a run's record: `diloco up` writes them, and reports are made from them.

Each line is one JSON object, for people and for `jq`, with `at`, `type` and, if it is about a job, `job` as namespace/name.

See docs/decisions/0216-figures-and-plots.md.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from diloco_operator.api.phases import Phase
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter
from pydantic.alias_generators import to_camel


def _seconds(value: Any) -> Any:
    return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else value


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds")


At = Annotated[float, BeforeValidator(_seconds), PlainSerializer(_text, when_used="json"), Field(ge=0, le=32503680000, allow_inf_nan=False)]
"""Seconds since the epoch. A file has them as ISO 8601, before the year 3000."""
Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class _Line(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)

    at: At


class RunBegan(_Line):
    """A command has begun to run jobs."""

    type: Literal["run"] = "run"
    format: Literal[1] = 1
    """The version of the format of all lines."""
    command: str = ""


class JobSeen(_Line):
    """The state of a job has changed."""

    type: Literal["job"] = "job"
    job: str
    state: str
    steps: Count
    """Outer steps of the whole job."""
    held_out_loss: Finite | None = None


class PhaseBegan(_Line):
    """A unit is in another phase, state, attempt or slice from now on."""

    type: Literal["phase"] = "phase"
    job: str
    unit: str
    phase: Phase
    state: str
    """As in the job's status."""
    attempt: Count
    slice: str = ""
    reason: str = ""


class UnitLeft(_Line):
    """The job does not want the unit any more."""

    type: Literal["left"] = "left"
    job: str
    unit: str


class StepTaken(_Line):
    """A unit has taken a local step, as the syncer heard."""

    type: Literal["step"] = "step"
    job: str
    unit: str
    attempt: Count
    step: Count
    """Local steps of this process of the unit. After a silence, numbers before this one may be missing."""
    seconds: Finite | None = None
    """Duration of the step as the unit measured it, without waits."""
    loss: Finite | None = None
    samples: Count = 0
    """Samples of the unit's session up to this step."""
    tokens: Count = 0
    """Tokens of the unit's session up to this step."""


class Merged(_Line):
    """An outer step has merged one fragment."""

    type: Literal["merge"] = "merge"
    job: str
    t: Count
    fragment: Count
    units: tuple[str, ...]
    """Units whose contributions the merge holds. If there are none, the fragment stays as it was."""
    loss: Finite | None = None


class UnitFigures(BaseModel):
    model_config = _Line.model_config

    tokens: Count = 0
    """Committed tokens of all attempts."""
    received_bytes: Count = 0
    """Bytes of exchanges from the unit to the syncer, since this process of the syncer began."""
    sent_bytes: Count = 0
    """Bytes from the syncer to the unit, since the same time."""


class Figures(_Line):
    """The job's figures, once a second."""

    type: Literal["figures"] = "figures"
    job: str
    syncer: str
    """The incarnation of the syncer's process, which counts bytes from its beginning."""
    t: Count
    tokens: Count
    """Committed tokens, as the units count them."""
    samples: Count
    """Committed sequence numbers, each counted once."""
    loss: Finite | None = None
    units: dict[str, UnitFigures]


class Recovered(_Line):
    """A unit contributes again."""

    type: Literal["recovered"] = "recovered"
    job: str
    unit: str
    attempt: Count
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Time from the loss until the unit trained again, as in the job's status."""


class FaultFired(_Line):
    """The command has sent a signal, because its user asked for that fault."""

    type: Literal["fault"] = "fault"
    job: str
    unit: str
    """A unit, or `syncer`."""
    signal: str
    step: Count
    """The outer step in the job's status."""


class Missing(_Line):
    """The syncer had forgotten some entries before it was asked for them."""

    type: Literal["missing"] = "missing"
    job: str
    entries: Count


class ObjectSeen(_Line):
    """The job as the API server has it. Written when the job's state changed, and at the end of the command."""

    type: Literal["object"] = "object"
    job: str
    object: dict[str, Any]


class RunEnded(_Line):
    """The command has ended. If this line is missing, the command was killed."""

    type: Literal["end"] = "end"
    ending: str


Line = Annotated[
    RunBegan | JobSeen | PhaseBegan | UnitLeft | StepTaken | Merged | Figures | Recovered | FaultFired | Missing | ObjectSeen | RunEnded,
    Field(discriminator="type"),
]
_ADAPTER: TypeAdapter[Line] = TypeAdapter(Line)


def parse_line(text: bytes) -> Line:
    """Raises ValueError if the text is no line of a record."""
    return _ADAPTER.validate_json(text)


def line_bytes(line: Line) -> bytes:
    """The line as JSON, with its line break."""
    return line.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"
