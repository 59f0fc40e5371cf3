from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from diloco.jax import TreeStore
from diloco.jax.inner_state import TreeState
from diloco.jax.session import TreeSession

type Params = dict[str, jax.Array]


class Recording[Tree, State](TreeSession[Tree, State]):
    """A session without a job: it records its steps, and overwrites a tensor when a test says so."""

    def __init__(self, store: TreeStore[Tree], state: State, on_adopt: Callable[[Sequence[str], Tree, State], State] | None) -> None:
        super().__init__(store, TreeState(store, state), None, on_adopt)
        self.store = store
        self.calls: list[tuple[int, float | None]] = []
        self.adopt_at: dict[int, float] = {}

    def _count_step(self, tokens: int, loss: float | None, batches: int) -> None:
        self.calls.append((tokens, loss))
        if (value := self.adopt_at.get(len(self.calls))) is not None:
            self.store.write({"w": np.full(3, value, np.float32)})


def test_updates_are_the_times_that_the_program_gave_back_other_arrays() -> None:
    store = TreeStore({"a": jnp.zeros(3), "b": jnp.zeros(2)})
    params = store.hand_out()
    store.take_back(params)
    assert store.updates == 0, "a micro-batch, which changes gradients only"
    store.take_back({**store.hand_out(), "b": jnp.ones(2)})
    store.write({"a": np.ones(3, np.float32)})
    store.take_back(store.hand_out())
    assert store.updates == 1, "what is adopted is no update"


class Average:
    """What a program does that keeps an average of its parameters in the optimizer's state: it takes the new values over."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def __call__(self, paths: Sequence[str], params: Params, state: Params) -> Params:
        self.calls.append(list(paths))
        return state | {path: params[path] for path in paths}


def joined[State](state: State, on_adopt: Callable[[Sequence[str], Params, State], State] | None = None) -> Recording[Params, State]:
    return Recording(TreeStore({"w": jnp.zeros(3), "b": jnp.zeros(())}), state, on_adopt)


def grown(params: Params) -> Params:
    return {name: leaf + 1 for name, leaf in params.items()}


def test_a_step_gives_back_the_programs_parameters_with_what_was_adopted_and_its_state() -> None:
    session = joined(0)
    session.adopt_at[2] = 9.0
    params, state = session.step(grown(session.params), session.opt_state + 1, tokens=4, loss=1.5)
    np.testing.assert_array_equal(params["w"], np.ones(3))
    params, state = session.step(grown(params), state + 1, tokens=4, loss=1.25)
    np.testing.assert_array_equal(params["w"], np.full(3, 9.0))
    assert float(params["b"]) == 2
    assert (state, session.opt_state) == (2, 2)
    assert session.calls == [(4, 1.5), (4, 1.25)]


def test_a_state_that_holds_copies_of_parameters_follows_an_adoption() -> None:
    average = Average()
    session = joined({"w": jnp.zeros(3), "b": jnp.zeros(())}, average)
    session.store.write({"w": np.full(3, 7, np.float32)})  # as at joining
    assert session.opt_state["w"].tolist() == [7, 7, 7]
    session.adopt_at[1] = 9.0
    params, state = session.step(session.params, session.opt_state, tokens=1)
    params, state = session.step(params, state, tokens=1)
    assert state["w"].tolist() == [9, 9, 9]
    assert average.calls == [["w"], ["w"]], "once for each adoption"


def test_a_state_that_changes_its_form_is_refused() -> None:
    optimizer = optax.adam(1e-3)
    session = joined(optimizer.init({"w": jnp.zeros(3), "b": jnp.zeros(())}))
    params, state = session.step(session.params, session.opt_state, tokens=1)
    with pytest.raises(ValueError, match="changed its form"):
        session.step(params, optax.sgd(1e-3).init(params), tokens=1)
    with pytest.raises(ValueError, match=r"from float32\(3,\) to bfloat16\(3,\)"):
        session.step(params, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16) if leaf.shape == (3,) else leaf, state), tokens=1)


def test_a_callback_that_changes_the_states_form_is_refused() -> None:
    session = joined({"w": jnp.zeros(3)}, lambda paths, params, state: {})
    session.adopt_at[1] = 9.0
    with pytest.raises(ValueError, match="on_adopt changed the form"):
        session.step(session.params, session.opt_state, tokens=1)


def test_a_loss_on_the_device_is_reported_one_step_later() -> None:
    session = joined(None)
    for loss in (3.0, 2.0, 1.0):
        session.step(session.params, None, tokens=1, loss=jnp.asarray(loss))
    assert session.calls == [(1, None), (1, 3.0), (1, 2.0)]


def test_a_broadcast_between_two_steps_is_not_lost_in_the_next() -> None:
    session = joined(None)
    held = session.params
    session.store.write({"w": np.full(3, 7, np.float32)})  # as a session does while the program waits for work
    params, _ = session.step(grown(held), None, tokens=1)
    np.testing.assert_array_equal(params["w"], np.full(3, 7.0))
    assert float(params["b"]) == 1
