"""The core's state as tensors and back."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from builders.core import InlineCore, SimulatedLearner, Simulation, a_job, a_seeded_core
from diloco.algorithm.layout import FrozenTensor, Layout, TensorSpec
from diloco.algorithm.state import CoreState, StateError
from numpy.typing import NDArray

type Tensors = dict[str, NDArray[Any]]

LAYOUT = Layout([TensorSpec("wte", (30, 4), True), TensorSpec("w", (7,)), TensorSpec("scale", ()), TensorSpec("b", (3, 2), stack_axes=1)])
TRAINING = a_job(compression="Int4", outer_optimizer={"learning_rate": 0.7, "momentum": 0.9}, overlap_steps=2)


def during_exchanges() -> Simulation[SimulatedLearner]:
    core = a_seeded_core(TRAINING, LAYOUT, value=0.5)
    return Simulation(core, [SimulatedLearner("a", 1.0), SimulatedLearner("b", 1.5, answer_seconds=0.9)]).run(until=30.2)


def a_core_during_exchanges() -> InlineCore:
    return during_exchanges().core


def arrays_of(state: CoreState) -> Tensors:
    return {name: array for part in state.parts() for name, array in part.items()}


def stored(core: InlineCore) -> tuple[Tensors, dict[str, Any]]:
    """As a snapshot keeps it."""
    state = core.state()
    return {name: array.copy() for name, array in arrays_of(state).items()}, json.loads(json.dumps(state.meta()))


def restored(tensors: Tensors, meta: dict[str, Any]) -> CoreState:
    """As a snapshot is read."""
    state = CoreState.allocate(meta)
    for name, array in arrays_of(state).items():
        array[...] = tensors[name]
    return state.checked()


def test_round_trip_during_exchanges_loses_nothing() -> None:
    core = a_core_during_exchanges()
    again = InlineCore(LAYOUT, TRAINING, restored(*stored(core)))
    assert (again.t, again.seeded) == (core.t, True)
    for p in range(4):
        assert again.version(p) == core.version(p)
        assert again.value(p).tobytes() == core.value(p).tobytes()
    assert [again.contributions_of(u) for u in "ab"] == [core.contributions_of(u) for u in "ab"]
    assert stored(again)[1] == stored(core)[1]
    assert all(np.array_equal(x, y) for x, y in zip(stored(again)[0].values(), stored(core)[0].values(), strict=True))


def test_the_frozen_base_is_remembered_and_a_state_that_does_not_say_it_is_refused() -> None:
    base = [FrozenTensor("base", (3, 2), 0xFEDC_0000_0000_0001)]
    core = a_seeded_core(TRAINING, Layout(LAYOUT.tensors, base), value=0.5)
    tensors, meta = stored(core)
    assert restored(tensors, meta).layout.frozen == tuple(base)
    del meta["frozen"]
    with pytest.raises(StateError, match="incomplete or malformed: KeyError: 'frozen'"):
        restored(tensors, meta)


def test_restored_core_makes_the_same_bytes_as_one_that_went_on() -> None:
    first = a_core_during_exchanges()
    results = []
    for state in (first.state(), restored(*stored(first))):
        core = InlineCore(LAYOUT, TRAINING, state)
        Simulation(core, [SimulatedLearner("a", 1.0), SimulatedLearner("b", 1.5)]).run(until=20)
        results.append([core.value(p).tobytes() for p in range(4)])
    assert results[0] == results[1]


def test_state_stays_as_it_was_while_the_core_goes_on() -> None:
    sim = during_exchanges()
    state = sim.core.state()
    tensors = arrays_of(state)
    kept = {name: array.copy() for name, array in tensors.items()}
    sim.run(until=50)
    assert sim.core.version(0) > state.versions[0]
    assert all(np.array_equal(tensors[name], kept[name]) for name in kept)
    assert not any(array.flags.writeable for array in tensors.values())


def test_the_fragment_that_was_merged_longest_ago_comes_first() -> None:
    """It is merged next. A snapshot that is written in this order lets go of it before there is a newer one."""
    state = a_core_during_exchanges().state()
    first_tensors = {fragment.tensors[0].name: state.versions[fragment.index] for fragment in state.fragments}
    versions = [first_tensors[next(iter(part)).removeprefix("value/")] for part in state.parts()]
    assert versions == sorted(state.versions)
    assert versions[0] < versions[-1]


def test_tensors_have_the_models_names_and_shapes() -> None:
    tensors, meta = stored(a_core_during_exchanges())
    assert {name: x.shape for name, x in tensors.items() if name.startswith("value/")} == {
        "value/wte": (30, 4),
        "value/w": (7,),
        "value/scale": (),
        "value/b": (3, 2),
    }
    assert restored(tensors, meta).layout == LAYOUT


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda tensors, meta: meta.update(layout=meta["layout"][:1]), "does not fit its own layout"),
        (lambda tensors, meta: meta["residual"].pop(), "malformed"),
        (lambda tensors, meta: tensors["value/w"].fill(np.nan), "NaN or infinity"),
        (lambda tensors, meta: meta.pop("t"), "incomplete or malformed: KeyError: 't'"),
        (lambda tensors, meta: meta.update(format=99), "format 99"),
        (lambda tensors, meta: meta.update(accounts={"a": 3}), "malformed"),
    ],
)
def test_state_that_cannot_be_used_is_refused_with_the_reason(spoil: Callable[[Tensors, dict[str, Any]], object], says: str) -> None:
    tensors, meta = stored(a_core_during_exchanges())
    spoil(tensors, meta)
    with pytest.raises(StateError, match=says):
        restored(tensors, meta)


def test_other_number_of_fragments_is_refused() -> None:
    with pytest.raises(StateError, match=r"4 fragments, the job into 2: training.fragments cannot change"):
        InlineCore(LAYOUT, a_job(fragments=2), a_core_during_exchanges().state())
