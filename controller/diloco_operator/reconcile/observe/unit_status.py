"""The records of units, `status.units[]`. They are read without pydantic models, because every reconcile reads all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic.alias_generators import to_camel

from diloco_operator.api import names
from diloco_operator.api.status import UnitState
from diloco_operator.api.unit_figures import DEFAULTS, KEYS
from diloco_operator.kube.timestamps import format_timestamp, parse_timestamp

LIVE = frozenset({UnitState.STARTING, UnitState.JOINING, UnitState.TRAINING, UnitState.DRAINING})
"""States in which the current attempt has processes, or had them a moment ago."""


class UnitStatusRecord(NamedTuple):
    """Fields as in `api.status.UnitStatus`; times are seconds since the epoch. This is a tuple because a reconcile of a big job makes
    thousands of changed copies, and a copy of a frozen dataclass with as many fields takes five times as long."""

    name: str
    pool: str
    state: UnitState = UnitState.PENDING
    slice: str = ""
    attempt: int = 0
    ended_attempt: int = 0
    failed_attempt: int = 0
    last_failure: str = ""
    restarts: int = 0
    reason: str = ""
    message: str = ""
    since: float | None = None
    failures: tuple[float, ...] = ()
    ended_at: float | None = None
    not_before: float | None = None
    unschedulable: int = 0
    grantor_said: str = ""
    cause: str = ""
    paused_until: float | None = None
    recover_seconds: float | None = None
    began_with: str = ""
    template_hash: str = ""
    figures: Mapping[str, Any] = DEFAULTS
    """Field in status -> figure. A figure that is absent in status is absent here."""

    @property
    def running(self) -> bool:
        """The end of the current attempt is not on record."""
        return self.attempt > self.ended_attempt

    @property
    def ended_by_itself(self) -> bool:
        """Its program ended with status 0, and nothing had asked it to leave."""
        return self.state is UnitState.COMPLETED and not self.reason

    @property
    def failed_last(self) -> bool:
        """The newest attempt failed, or it has not trained yet and the attempt before failed."""
        begun = self.state in (UnitState.STARTING, UnitState.JOINING)
        return self.failed_attempt > 0 and self.failed_attempt == (self.attempt - 1 if begun else self.attempt)

    @property
    def steps(self) -> int:
        """Local steps of all attempts that were committed."""
        steps: int = self.figures.get("steps", 0)
        return steps

    @property
    def number(self) -> int:
        """Its number in the pool: 2 for `v5p-2`."""
        index = names.unit_index(self.pool, self.name)
        assert index is not None, "checked where status and pods come in"
        return index


def read_units(status: Mapping[str, Any]) -> dict[str, UnitStatusRecord]:
    """Name -> record, in the order of status."""
    return {raw["name"]: _read(raw) for raw in status.get("units") or ()}


def _read(raw: Mapping[str, Any]) -> UnitStatusRecord:
    values = {name: raw[key] for name, key in _FIELDS.items() if raw.get(key) is not None}
    for name in _TIMES & values.keys():
        values[name] = parse_timestamp(values[name])
    values["failures"] = tuple(parse_timestamp(moment) for moment in values.get("failures", ()))
    figures = {key: raw[key] for key in KEYS.values() if key in raw}
    record = UnitStatusRecord(**values, figures=figures)
    return record._replace(state=_state(UnitState(record.state), runs=record.running))


def _state(state: UnitState, *, runs: bool) -> UnitState:
    """The state as written, unless the attempts contradict it. No operator writes such a status, but attempts decide which pods may go, so
    they win."""
    if runs is (state in LIVE):
        return state
    return UnitState.STARTING if runs else UnitState.PENDING


def write_unit(record: UnitStatusRecord) -> dict[str, Any]:
    """The record as fields of status. Fields that are not in `_ALWAYS` are absent at their defaults, so that a version that adds one need
    not write every job's status anew."""
    fields = {name: getattr(record, name) for name in _FIELDS}
    for name in _TIMES:
        if fields[name] is not None:
            fields[name] = format_timestamp(fields[name])
    fields["failures"] = [format_timestamp(moment) for moment in record.failures]
    fields["state"], fields["reason"] = record.state.value, str(record.reason)
    written = {key: fields[name] for name, key in _FIELDS.items() if name in _ALWAYS or fields[name] != _DEFAULTS[name]}
    return {**written, **DEFAULTS, **{key: value for key, value in record.figures.items() if value or key in DEFAULTS}}


_FIELDS = {name: to_camel(name) for name in UnitStatusRecord._fields if name != "figures"}
"""Field of the record -> field of status."""
_DEFAULTS = UnitStatusRecord._field_defaults
_TIMES = frozenset({"since", "ended_at", "not_before", "paused_until"})
_ALWAYS = frozenset(
    {"name", "pool", "slice", "state", "attempt", "restarts", "reason", "message", "failures", "ended_attempt", "template_hash"}
)
"""Fields that every unit has in status, also at their defaults. The CRD requires `name`, `pool` and `state`. The others could be
left out, but they always were there, and a version that leaves them out would write every job's status anew."""
