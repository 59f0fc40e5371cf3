import pytest
from diloco.contract import Exit
from diloco.protocol.channel import Keepalive
from diloco.protocol.diloco_pb2 import Refused
from diloco.protocol.refusal import EXITS, exit_for, name_of, reason_of


def test_every_code_has_an_exit_status_and_a_reason() -> None:
    codes = set(Refused.Code.values()) - {Refused.CODE_UNSPECIFIED}
    assert set(EXITS) == codes
    assert {reason_of(code) for code in codes} == {
        "Layout",
        "NonFinite",
        "Fenced",
        "DuplicateIdentity",
        "WrongJob",
        "Protocol",
        "Quarantined",
    }


def test_a_code_of_a_newer_syncer_is_a_crash_with_its_number() -> None:
    assert exit_for(99) is Exit.CRASHED
    assert name_of(99) == "99"


def test_keepalives_that_would_take_a_busy_machine_for_a_dead_one_are_refused() -> None:
    with pytest.raises(ValueError, match="half a second"):
        Keepalive(every=0.1)
