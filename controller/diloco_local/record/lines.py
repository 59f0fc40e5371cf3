"""The lines of a run's record: what `diloco up` writes down, and reports are made from.

One JSON object a line, each with `at`, `type` and, where it is about a job, `job` as namespace/name. People can read them, and `jq` can.

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
"""Seconds since the epoch; in a file as ISO 8601, before the year 3000."""
Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class _Line(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)

    at: At


class RunBegan(_Line):
    """A command has begun to run jobs."""

    type: Literal["run"] = "run"
    format: Literal[1] = 1
    """The format of all lines."""
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
    """A unit does something else from now on."""

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
    """Local steps of this process of the unit. After a silence numbers before it may be missing."""
    seconds: Finite | None = None
    """As the unit measured it, without waits."""
    loss: Finite | None = None
    samples: Count = 0
    """In its session up to this step."""
    tokens: Count = 0


class Merged(_Line):
    """An outer step has merged one fragment."""

    type: Literal["merge"] = "merge"
    job: str
    t: Count
    fragment: Count
    units: tuple[str, ...]
    """Units whose contributions it holds; none: the fragment stays as it was."""
    loss: Finite | None = None


class UnitFigures(BaseModel):
    model_config = _Line.model_config

    tokens: Count = 0
    """Committed, over all attempts."""
    received_bytes: Count = 0
    """Data of the exchanges from the unit to the syncer, since that began."""
    sent_bytes: Count = 0


class Figures(_Line):
    """The job's figures, once a second."""

    type: Literal["figures"] = "figures"
    job: str
    syncer: str
    """Names the process, from whose beginning bytes are counted."""
    t: Count
    tokens: Count
    """Committed, as the units count them."""
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
    """From its loss until it trained again, as in the job's status."""


class FaultFired(_Line):
    """The command has sent a signal, as its user wished."""

    type: Literal["fault"] = "fault"
    job: str
    unit: str
    """Or `syncer`."""
    signal: str
    step: Count
    """The outer step in the job's status."""


class Missing(_Line):
    """The syncer had forgotten some entries before it was asked for them."""

    type: Literal["missing"] = "missing"
    job: str
    entries: Count


class ObjectSeen(_Line):
    """The job as the API server had it: when its state had changed, and at the end of the command."""

    type: Literal["object"] = "object"
    job: str
    object: dict[str, Any]


class RunEnded(_Line):
    """The command has ended. Without this line it was killed."""

    type: Literal["end"] = "end"
    ending: str


Line = Annotated[
    RunBegan | JobSeen | PhaseBegan | UnitLeft | StepTaken | Merged | Figures | Recovered | FaultFired | Missing | ObjectSeen | RunEnded,
    Field(discriminator="type"),
]
_ADAPTER: TypeAdapter[Line] = TypeAdapter(Line)


def parse_line(text: bytes) -> Line:
    """Raise ValueError for what is no line of a record."""
    return _ADAPTER.validate_json(text)


def line_bytes(line: Line) -> bytes:
    """Encode a line with its line break."""
    return line.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"
