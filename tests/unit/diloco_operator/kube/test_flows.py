from __future__ import annotations

from diloco_operator.kube.flows import HEAVY_SECONDS, Flows


def test_a_heavy_flow_is_contended_while_a_light_one_is_present() -> None:
    flows: Flows[str] = Flows(light=2, present=1.0)
    flows.note("crowd", 3, now=10.0)
    assert not flows.is_contended("crowd", ["crowd"], now=10.0)
    flows.note("quiet", 2, now=10.5)
    assert flows.is_contended("crowd", ["crowd"], now=11.5)
    assert not flows.is_contended("crowd", ["crowd"], now=11.6)


def test_a_light_flow_that_uses_something_is_present_however_long_it_takes() -> None:
    flows: Flows[str] = Flows(light=2, present=1.0)
    flows.note("quiet", 1, now=0.0)
    flows.note("crowd", 3, now=4.0)
    assert flows.is_contended("crowd", ["crowd", "quiet"], now=4.0)


def test_a_light_flow_is_never_contended_and_heavy_ones_do_not_make_room_for_each_other() -> None:
    flows: Flows[str] = Flows(light=2, present=1.0)
    for flow in ("one", "two"):
        flows.note(flow, 3, now=0.0)
    assert not flows.is_contended("one", ["one", "two"], now=0.0)
    flows.note("quiet", 1, now=0.0)
    assert not flows.is_contended("quiet", ["one", "two", "quiet"], now=0.0)


def test_a_flow_is_heavy_for_a_while_after_it_wanted_much() -> None:
    flows: Flows[str] = Flows(light=2, present=60.0)
    flows.note("crowd", 3, now=0.0)
    flows.note("quiet", 1, now=0.0)
    flows.note("crowd", 1, now=HEAVY_SECONDS - 1)
    assert flows.is_contended("crowd", (), now=HEAVY_SECONDS)
    assert not flows.is_contended("crowd", (), now=HEAVY_SECONDS + 0.1)
