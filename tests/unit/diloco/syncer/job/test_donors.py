"""Which unit gives its state to which."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from diloco.syncer.job.donors import AFTER_RESTART, SETTLE, Answer, Candidate, Donors, Taking

H = 4
T = 100


def a_unit(unit: str, locality: str = "", kind: str = "torch AdamW", address: str = "10.0.0.1:1", steps: int = 0) -> Candidate:
    return Candidate(unit, 1, (address,) if address else (), kind, locality, steps)


def a_taker(unit: str, round_: int = 1, failed: Iterable[str] = (), locality: str = "", session: str = "s", steps: int = 0) -> Taking:
    return Taking(unit, session, "torch AdamW", locality, round_, frozenset(failed), steps)


def donors(restored_at: float | None = None) -> Donors:
    return Donors(H, lambda: b"grant", restored_at)


def named(answers: Iterable[tuple[Taking, Answer]]) -> dict[str, str]:
    return {taking.unit: answer.donor.unit if answer.donor is not None else answer.why for taking, answer in answers}


def asking(found: Donors, *takers: Taking) -> Donors:
    for taker in takers:
        assert found.asks(taker) is None
    return found


def test_the_nearest_unit_is_named() -> None:
    units = [a_unit("a", "eu/eu-1/x"), a_unit("b", "us/us-1/y"), a_unit("c", "us/us-1/z"), a_unit("d", "us/us-2")]
    found = asking(donors(), a_taker("u", locality="us/us-1/z"))
    assert named(found.name(units, [], T, 0.0)) == {"u": "c"}


def test_a_unit_of_another_cluster_is_no_donor_however_near_it_is() -> None:
    far, near = a_unit("far", "us/us-1/x"), replace(a_unit("near", "eu/eu-1/x"), cluster="tokyo")
    found = asking(donors(), a_taker("u", locality="eu/eu-1/x"))
    assert named(found.name([far, near], [], T, 0.0)) == {"u": "far"}
    found = asking(donors(), replace(a_taker("u", locality="eu/eu-1/x"), cluster="tokyo"))
    assert named(found.name([far, near], [], T, 0.0)) == {"u": "near"}
    found = asking(donors(), replace(a_taker("u"), cluster="outside/u"))
    assert named(found.name([far, near], ["torch AdamW"], T, 0.0)) == {"u": "no unit of its cluster has the state of torch AdamW"}


def test_of_a_long_kind_of_state_other_units_are_told_the_beginning() -> None:
    found = asking(donors(), a_taker("u"))
    why = named(found.name([a_unit("a", kind="torch " + "A" * 60_000)], ["torch " + "A" * 60_000], T, 0.0))["u"]
    assert why == f"no unit that trains has the state of torch AdamW; others have the state of torch {'A' * 294}"


def test_eight_takers_do_not_sit_on_one_donor_and_who_has_taken_gives() -> None:
    takers = [a_taker(f"u{number}") for number in range(8)]
    found = asking(donors(), *takers)
    giving = ["d0"]
    served = 0
    for expected in (1, 2, 4, 1):  # 1 donor, then 2, 4 and 8
        answered = found.name([a_unit(unit) for unit in giving], [], T, 0.0)
        assert len({answer.donor.unit for _, answer in answered if answer.donor is not None}) == len(answered) == expected
        served += expected
        for taking, _ in answered:
            found.ends(taking.unit)
            giving.append(taking.unit)
    assert served == 8


def test_of_two_as_near_the_one_that_has_given_less_is_named() -> None:
    found = asking(donors(), a_taker("u1"))
    assert named(found.name([a_unit("a"), a_unit("b")], [], T, 0.0)) == {"u1": "a"}
    found.ends("u1")
    asking(found, a_taker("u2"))
    assert named(found.name([a_unit("a"), a_unit("b")], [], T, 0.0)) == {"u2": "b"}
    assert (found.times("a"), found.times("b")) == (1, 1)


def test_a_unit_with_less_than_half_of_the_steps_of_another_one_gives_to_none_however_near_it_is() -> None:
    units = [a_unit("near", "us/us-1", steps=169), a_unit("far", "eu", steps=340), a_unit("half", "us/us-2", steps=170)]
    found = asking(donors(), *(a_taker(f"u{number}", locality="us/us-1") for number in range(3)))
    assert named(found.name(units, [], T, 0.0)) == {"u0": "half", "u1": "far"}
    assert found.name(units, [], T, 1.0) == [], "the third one waits for one of these"


def test_no_donor_has_fewer_steps_than_what_the_taker_has_stored() -> None:
    found = asking(donors(), a_taker("u", steps=340))
    assert named(found.name([a_unit("a", steps=60)], [], T, 0.0)) == {
        "u": "the units that train have a state with 60 local steps behind it at most, and this unit has stored one with 340"
    }
    asking(found, a_taker("u", 2, steps=340))
    assert named(found.name([a_unit("a", steps=60), a_unit("b", steps=340)], [], T, 0.0)) == {"u": "b"}
    asking(found, a_taker("u", 3))
    assert named(found.name([a_unit("a", steps=60)], [], T, 0.0)) == {"u": "a"}, "what it has stored cannot be used"


def test_a_unit_that_has_stored_more_steps_waits_for_donors_that_come_back() -> None:
    found = asking(donors(restored_at=50.0), a_taker("u", steps=340))
    assert found.name([a_unit("a", steps=60)], [], T, 50.0 + SETTLE) == []
    assert "has stored one with 340" in named(found.name([a_unit("a", steps=60)], [], T, 50.0 + AFTER_RESTART))["u"]


def test_a_taker_waits_while_all_donors_are_busy() -> None:
    found = asking(donors(), a_taker("u1"), a_taker("u2"))
    assert named(found.name([a_unit("a")], [], T, 0.0)) == {"u1": "a"}
    assert found.name([a_unit("a")], [], T, 1.0) == []
    found.ends("u1")
    assert named(found.name([a_unit("a")], [], T, 2.0)) == {"u2": "a"}


def test_the_same_round_gets_the_same_answer_again_and_a_new_round_another_one() -> None:
    found = asking(donors(), a_taker("u"))
    ((_, answer),) = found.name([a_unit("a"), a_unit("b")], [], T, 0.0)
    assert found.asks(a_taker("u")) == answer
    asking(found, a_taker("u", 2, failed=["a"]))
    assert named(found.name([a_unit("a"), a_unit("b")], [], T, 0.0)) == {"u": "b"}


def test_a_new_process_of_the_unit_is_answered_anew() -> None:
    found = asking(donors(), a_taker("u"))
    found.name([a_unit("a")], [], T, 0.0)
    asking(found, a_taker("u", session="another"))
    assert named(found.name([a_unit("a")], [], T, 0.0)) == {"u": "a"}


def test_units_without_an_address_or_with_another_kind_of_state_are_no_donors_and_the_reason_says_so() -> None:
    found = asking(donors(), a_taker("u"))
    units = [a_unit("a", address=""), a_unit("b", kind="torch SGD")]
    assert named(found.name(units, ["torch AdamW", "torch SGD"], T, 0.0)) == {
        "u": "no unit that trains has the state of torch AdamW; others have the state of torch SGD"
    }


def test_when_all_have_failed_the_reason_names_them() -> None:
    found = asking(donors(), a_taker("u", 3, failed=["b", "a"]))
    assert named(found.name([a_unit("a"), a_unit("b")], [], T, 0.0)) == {
        "u": "of the units that train, none is left to ask after a, b",
    }


def test_the_reason_says_why_the_last_one_could_not_give_its_state() -> None:
    why = "unit a: the optimizer keeps a tensor that cannot be handed over"
    found = asking(donors(), replace(a_taker("u", 2, failed=["a"]), why=why))
    assert named(found.name([a_unit("a")], [], T, 0.0)) == {"u": f"of the units that train, none is left to ask after a; {why}"}


def test_in_the_first_interval_nobody_has_a_state_worth_taking() -> None:
    found = asking(donors(), a_taker("u"))
    assert "no unit has trained for a whole interval" in named(found.name([a_unit("a")], [], H, 0.0))["u"]


def test_after_a_restart_that_no_unit_has_survived_a_taker_does_not_wait_for_donors() -> None:
    found = asking(donors(restored_at=50.0), a_taker("u"))
    now = 50.0 + SETTLE + 0.1
    assert found.name([], [], T, now, awaited=True) == []
    assert "no unit that trains has the state" in named(found.name([], [], T, now, awaited=False))["u"]


def test_after_a_restart_of_the_syncer_a_taker_waits_for_donors_that_come_back() -> None:
    found = asking(donors(restored_at=50.0), a_taker("u"))
    assert found.name([a_unit("a")], [], T, 50.0 + SETTLE - 0.1) == []
    assert found.name([], [], T, 50.0 + SETTLE) == []
    assert named(found.name([a_unit("a")], [], T, 50.0 + SETTLE)) == {"u": "a"}
    late = asking(donors(restored_at=50.0), a_taker("u"))
    assert named(late.name([], [], T, 50.0 + AFTER_RESTART)) == {"u": "no unit that trains has the state of torch AdamW"}


def test_a_donor_is_told_again_on_a_new_stream_whom_it_gives_to() -> None:
    found = asking(donors(), a_taker("u"))
    found.name([a_unit("a")], [], T, 0.0)
    assert [(taking.unit, answer.grant) for taking, answer in found.grants_of("a")] == [("u", b"grant")]
    found.ends("u")
    assert found.grants_of("a") == []


def test_a_donor_whose_taker_says_so_after_a_restart_of_the_syncer_is_busy() -> None:
    found = donors(restored_at=50.0)
    found.copies(a_taker("u1"), a_unit("a"))
    asking(found, a_taker("u2"))
    assert found.name([a_unit("a")], [], T, 60.0) == []
    found.ends("u1")
    assert named(found.name([a_unit("a")], [], T, 60.0)) == {"u2": "a"}
