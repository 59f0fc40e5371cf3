"""The state of optimizers in JAX on its way from one process to another."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from builders.frameworks.optax_program import OptaxProgram, Place, as_it_is, clipped, given, over_two_devices
from diloco.algorithm.pieces import whole
from diloco.jax import TreeStore
from diloco.jax.inner_state import TreeState
from diloco.protocol.state_parts import StateError

pytestmark = pytest.mark.slow

STEPS = 3


def injected() -> optax.GradientTransformation:
    made: optax.GradientTransformation = optax.inject_hyperparams(optax.adamw)(learning_rate=0.05)
    return made


def two() -> optax.GradientTransformation:
    kinds = {"layers": "adam", "turned": "adam", "bias": "sgd", "scale": "sgd"}
    return optax.multi_transform({"adam": optax.adamw(0.05), "sgd": optax.sgd(0.1, momentum=0.9)}, kinds)


def factored() -> optax.GradientTransformation:
    return optax.adafactor(0.05, min_dim_size_to_factor=2)


def short_moments() -> optax.GradientTransformation:
    return optax.adamw(0.05, mu_dtype=jnp.bfloat16)


OPTIMIZERS = [clipped, injected, two, factored, short_moments, lambda: optax.sgd(0.1)]
NAMES = ["clipped AdamW with a schedule", "injected rate", "two optimizers", "factored", "short moments", "no state"]


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        # Each optimizer once, and the types in turn; make ci-full has all pairs.
        pytest.param(make, dtype, id=f"{name}-{dtype}", marks=[] if (at + two) % 2 == 0 else pytest.mark.full)
        for at, (make, name) in enumerate(zip(OPTIMIZERS, NAMES, strict=True))
        for two, dtype in enumerate(("float32", "bfloat16"))
    ],
)
def test_who_took_the_state_trains_on_as_the_donor_does(make: Any, dtype: str) -> None:
    donor, taker = OptaxProgram(make(), dtype=dtype), OptaxProgram(make(), seed=9, dtype=dtype)
    donor.train(STEPS)
    donor.gives_to(taker)
    for program in (donor, taker):
        program.train(STEPS)
    np.testing.assert_equal(taker.values(), donor.values())  # bit for bit


@pytest.fixture(scope="module")
def process_of_two_devices() -> Iterator[ProcessPoolExecutor]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("JAX_NUM_CPU_DEVICES", "2")  # before the process begins, with the first task
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            yield pool


@pytest.mark.parametrize(
    ("donor", "taker", "devices"),
    [(as_it_is, over_two_devices, 2), (over_two_devices, as_it_is, 1), (over_two_devices, over_two_devices, 2)],
)
def test_donor_and_taker_may_be_sharded_differently(
    donor: Place, taker: Place, devices: int, process_of_two_devices: ProcessPoolExecutor
) -> None:
    gave, took, lies_on = process_of_two_devices.submit(given, donor, taker, STEPS).result()
    # Sums are in another order where a matrix is on two devices.
    same = np.testing.assert_array_equal if donor is taker else partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    for name, values in gave.items():
        same(took[name], values)
    assert lies_on == devices, "what was taken lies as what was there"


def test_without_the_state_it_would_not() -> None:
    donor, taker = OptaxProgram(clipped()), OptaxProgram(clipped())
    donor.train(STEPS)
    taker.store.write(donor.store.read([spec.name for spec in donor.store.specs()]))
    taker.batches.bit_generator.state = donor.batches.bit_generator.state
    for program in (donor, taker):
        program.train(STEPS)
    assert any((taker.values()[name] != value).any() for name, value in donor.values().items())


def test_keys_counters_and_numbers_in_the_state_are_handed_over() -> None:
    def program(seed: int) -> OptaxProgram:
        more: dict[str, Any] = {
            "key": jax.random.key(seed),
            "data": jax.random.PRNGKey(seed),
            "position": seed,
            "host": np.arange(seed, seed + 3),
        }
        return OptaxProgram(clipped(), **more)

    donor, taker = program(7), program(4)
    donor.gives_to(taker)
    taken = taker.state.opt_state[1]
    assert taken["position"] == 7
    np.testing.assert_array_equal(taken["host"], [7, 8, 9])
    assert jax.random.uniform(taken["key"]) == jax.random.uniform(jax.random.key(7))
    assert jax.random.uniform(taken["data"]) == jax.random.uniform(jax.random.key(7))


def test_a_tensor_that_was_adopted_after_it_came_keeps_what_was_adopted() -> None:
    donor, taker = OptaxProgram(clipped()), OptaxProgram(clipped(), seed=9)
    (bias,), adopted = [spec for spec in donor.store.specs() if spec.name == "bias"], np.full(6, 3.0, np.float32)
    finish = taker.state.finish

    def adopts_before_it_is_whole(rest: Any) -> None:
        taker.store.apply(taker.store.prepare(["bias"], adopted))
        finish(rest)

    taker.state.finish = adopts_before_it_is_whole  # type: ignore[method-assign]
    donor.gives_to(taker)
    np.testing.assert_array_equal(taker.values()["bias"], adopted)
    np.testing.assert_array_equal(taker.values()["turned"], donor.values()["turned"])
    assert whole(bias).elements == 6


def test_a_state_that_was_donated_is_lent_until_the_step_gives_the_next_one() -> None:
    program = OptaxProgram(clipped())
    assert not program.state.lent
    params, state = program.update(program.store.hand_out(), program.state.opt_state, jnp.ones((3, 5)))
    assert program.state.lent
    program.store.take_back(params)
    program.state.opt_state = state
    assert not program.state.lent


def test_the_kind_names_the_classes_that_hold_something() -> None:
    assert OptaxProgram(clipped()).state.kind == "jax ScaleByAdamState, ScaleByScheduleState"
    assert OptaxProgram(optax.sgd(0.1)).state.kind == "jax pytree"


def test_arrays_are_named_by_their_place_in_the_state() -> None:
    state = OptaxProgram(two()).state
    found = {one.name for one in state.arrays([whole(spec) for spec in state._store.specs()])}
    assert found == {
        "",
        "inner_states.adam.inner_state.0.mu",
        "inner_states.adam.inner_state.0.nu",
        "inner_states.sgd.inner_state.0.trace",
    }


class Plain(NamedTuple):
    """A state that is the moments themselves, beside one of a name that is no word."""

    ema: Any


def test_a_state_of_moments_alone_has_a_name_for_them() -> None:
    params = {"w": jnp.ones((2, 2))}
    for state, names in (({"w": jnp.zeros((2, 2))}, ["", "_"]), ({"a b": Plain(params)}, ["", "a_b.ema"])):
        store = TreeStore(params)
        assert [one.name for one in TreeState(store, state).arrays([whole(spec) for spec in store.specs()])] == names


def test_moments_of_frozen_parameters_are_part_of_the_rest() -> None:
    params = {"base": jnp.ones((2, 2)), "w": jnp.ones((2, 2))}
    store = TreeStore(params, trained=lambda path: path == "w")
    state = TreeState(store, optax.adam(0.1).init(params))
    assert set(state.stage_rest().wait()["leaves"]) == {"0/count", "0/mu/base", "0/nu/base"}


def test_a_rest_that_is_too_large_is_not_given() -> None:
    store = TreeStore({"w": jnp.ones(2)})
    state = TreeState(store, {"table": jnp.zeros((17 << 20,), jnp.float32)})
    state.warm_up([[whole(spec) for spec in store.specs()]])  # it is no reason not to join
    with pytest.raises(StateError, match=r"the optimizer keeps 68 MiB that have not the shapes of its parameters, table most of them"):
        state.stage_rest()


def other_count() -> OptaxProgram:
    return OptaxProgram(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.1)))


@pytest.mark.parametrize(
    ("give", "take", "why"),
    [
        (lambda: OptaxProgram(clipped()), lambda: OptaxProgram(optax.adamw(0.1)), "^the donor's 1.0.mu of bias is not of this program"),
        (lambda: OptaxProgram(clipped()), other_count, "does not fit this program: .* 1/2/count is in one of the two states only"),
        (
            lambda: OptaxProgram(clipped(), seen=3),
            lambda: OptaxProgram(clipped(), seen=0.5),
            "does not fit this program: .* 1/seen is float here and int there",
        ),
        (
            lambda: OptaxProgram(clipped(), key=jax.random.key(0)),
            lambda: OptaxProgram(clipped(), key=jax.random.key(0, impl="rbg")),
            r"does not fit this program: .* 1/key is uint32\[4\] here and .*shape=\(2,\)",
        ),
    ],
    ids=["another place", "another schedule", "another type", "another generator"],
)
def test_a_state_that_does_not_fit_changes_nothing(give: Callable[[], OptaxProgram], take: Callable[[], OptaxProgram], why: str) -> None:
    donor, taker = give(), take()
    before, values = taker.state.opt_state, taker.values()
    with pytest.raises(StateError, match=why):
        donor.gives_to(taker)
    assert taker.state.opt_state is before
    np.testing.assert_equal(taker.values(), values)


def test_the_steps_behind_a_state_go_with_it() -> None:
    donor, taker = OptaxProgram(clipped()), OptaxProgram(clipped(), seed=9)
    donor.train(STEPS)
    donor.state.steps = STEPS
    donor.gives_to(taker)
    assert taker.state.steps == STEPS


def test_steps_that_cannot_be_are_refused_and_change_nothing() -> None:
    donor, taker = OptaxProgram(clipped()), OptaxProgram(clipped(), seed=9)
    donor.state.steps = -1
    before, values = taker.state.opt_state, taker.values()
    with pytest.raises(StateError, match="-1, which is no number of steps"):
        donor.gives_to(taker)
    assert taker.state.opt_state is before
    assert taker.state.steps == 0
    np.testing.assert_equal(taker.values(), values)


def test_a_copy_that_is_not_whole_changes_nothing() -> None:
    donor, taker = OptaxProgram(clipped()), OptaxProgram(clipped(), seed=9)
    before, values = taker.state.opt_state, taker.values()
    with pytest.raises(StateError, match=r"0 of \d+ elements of 1\.0\.mu came"):
        taker.state.finish(donor.rest())
    assert taker.state.opt_state is before
    np.testing.assert_equal(taker.values(), values)
