"""The list of uses is one: the simulator's, the status', and the phases of a record."""

from __future__ import annotations

from diloco.goodput import Use
from diloco_operator.api.goodput import GoodputStatus, UnitSeconds, field_of, key_of
from diloco_operator.api.phases import Phase


def test_status_has_a_field_for_each_use() -> None:
    assert list(UnitSeconds.model_fields) == [field_of(use) for use in Use]
    assert list(UnitSeconds().model_dump(by_alias=True)) == [key_of(use) for use in Use]


def test_each_phase_is_a_use_but_for_those_in_which_a_unit_has_no_time() -> None:
    assert {phase.use for phase in Phase} == {*Use, None}
    assert [phase for phase in Phase if phase.use is None] == [Phase.FAILED, Phase.OVER]


def test_badput_is_in_shares_of_all_time_the_largest_first() -> None:
    goodput = GoodputStatus(unit_seconds=UnitSeconds(training=60, start=10, recovery=30), measured_at=0.0)
    assert goodput.badput == {Use.RECOVERY: 0.3, Use.START: 0.1}
