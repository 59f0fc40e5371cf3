from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from diloco.jax import Session, TreeStore
from diloco.session.data_feed import LeasedBatches, Shard

type Params = dict[str, jax.Array]


class RecordingDriver:
    """A fake driver: records its calls, and overwrites a tensor when a test says so."""

    def __init__(self, store: TreeStore[dict[str, jax.Array]]) -> None:
        self.store = store
        self.calls: list[tuple[int, float | None]] = []
        self.adopt_at: dict[int, float] = {}
        self.done = False
        self.draining = False
        self.over = False
        self.closed = False
        self.pauses: list[tuple[str, float]] = []
        self.finishes: list[str] = []
        self.evaluated: tuple[float, int] | None = None

    def batches[T](self, source: Callable[[np.ndarray], T], batch_size: int, *, ahead: int = 64) -> Iterator[T]:
        yield source(np.arange(batch_size))

    def numbers(self, batch_size: int, *, samples: int | None = None, seed: int = 0, ahead: int = 64) -> LeasedBatches:
        return LeasedBatches(lambda: iter([np.arange(batch_size)]), batch_size, samples, seed)

    def shards(self, count: int, *, seed: int = 0) -> Iterator[Shard]:
        yield Shard(0, count, epoch=seed)

    def step(self, *, tokens: int, loss: float | None = None, batches: int = 1) -> None:
        self.calls.append((tokens, loss))
        if (value := self.adopt_at.get(len(self.calls))) is not None:
            self.store.write({"w": np.full(3, value, np.float32)})

    @property
    def step_count(self) -> int:
        return len(self.calls)

    @property
    def optimizer_steps(self) -> int:
        return 7 + len(self.calls)

    @property
    def t(self) -> int:
        return 5

    @property
    def steps(self) -> int:
        return 9

    @property
    def progress(self) -> float:
        return 0.5

    def evaluate(self, held_out_loss: float, tokens: int) -> None:
        self.evaluated = (held_out_loss, tokens)

    def paused(self, reason: str, at_most: float) -> AbstractContextManager[None]:
        self.pauses.append((reason, at_most))
        return nullcontext()

    def finish(self, reason: str) -> None:
        self.finishes.append(reason)

    def close(self) -> None:
        self.closed = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


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


def joined[State](
    state: State, on_adopt: Callable[[Sequence[str], Params, State], State] | None = None
) -> tuple[Session[Params, State], RecordingDriver]:
    store = TreeStore({"w": jnp.zeros(3), "b": jnp.zeros(())})
    driver = RecordingDriver(store)
    return Session(driver, store, state, on_adopt), driver


def grown(params: Params) -> Params:
    return {name: leaf + 1 for name, leaf in params.items()}


def test_a_step_gives_back_the_programs_parameters_with_what_was_adopted_and_its_state() -> None:
    session, driver = joined(0)
    driver.adopt_at[2] = 9.0
    params, state = session.step(grown(session.params), session.opt_state + 1, tokens=4, loss=1.5)
    np.testing.assert_array_equal(params["w"], np.ones(3))
    params, state = session.step(grown(params), state + 1, tokens=4, loss=1.25)
    np.testing.assert_array_equal(params["w"], np.full(3, 9.0))
    assert float(params["b"]) == 2
    assert (state, session.opt_state) == (2, 2)
    assert driver.calls == [(4, 1.5), (4, 1.25)]


def test_a_state_that_holds_copies_of_parameters_follows_an_adoption() -> None:
    average = Average()
    session, driver = joined({"w": jnp.zeros(3), "b": jnp.zeros(())}, average)
    driver.store.write({"w": np.full(3, 7, np.float32)})  # as at joining
    assert session.opt_state["w"].tolist() == [7, 7, 7]
    driver.adopt_at[1] = 9.0
    params, state = session.step(session.params, session.opt_state, tokens=1)
    params, state = session.step(params, state, tokens=1)
    assert state["w"].tolist() == [9, 9, 9]
    assert average.calls == [["w"], ["w"]], "once for each adoption"


def test_a_state_that_changes_its_form_is_refused() -> None:
    optimizer = optax.adam(1e-3)
    session, _ = joined(optimizer.init({"w": jnp.zeros(3), "b": jnp.zeros(())}))
    params, state = session.step(session.params, session.opt_state, tokens=1)
    with pytest.raises(ValueError, match="changed its form"):
        session.step(params, optax.sgd(1e-3).init(params), tokens=1)
    with pytest.raises(ValueError, match=r"from float32\(3,\) to bfloat16\(3,\)"):
        session.step(params, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16) if leaf.shape == (3,) else leaf, state), tokens=1)


def test_a_callback_that_changes_the_states_form_is_refused() -> None:
    session, driver = joined({"w": jnp.zeros(3)}, lambda paths, params, state: {})
    driver.adopt_at[1] = 9.0
    with pytest.raises(ValueError, match="on_adopt changed the form"):
        session.step(session.params, session.opt_state, tokens=1)


def test_a_loss_on_the_device_is_reported_one_step_later() -> None:
    session, driver = joined(None)
    for loss in (3.0, 2.0, 1.0):
        session.step(session.params, None, tokens=1, loss=jnp.asarray(loss))
    assert driver.calls == [(1, None), (1, 3.0), (1, 2.0)]


def test_a_broadcast_between_two_steps_is_not_lost_in_the_next() -> None:
    session, driver = joined(None)
    held = session.params
    driver.store.write({"w": np.full(3, 7, np.float32)})  # as the driver does while the program waits for work
    params, _ = session.step(grown(held), None, tokens=1)
    np.testing.assert_array_equal(params["w"], np.full(3, 7.0))
    assert float(params["b"]) == 1


def test_the_rest_is_the_drivers() -> None:
    session, driver = joined(None)
    driver.done = True
    with session as entered:
        assert entered is session
        assert [batch.tolist() for batch in session.batches(lambda numbers: numbers * 2, 3)] == [[0, 2, 4]]
        assert list(session.numbers(3)) == [[0, 1, 2]]
        assert list(session.shards(7, seed=2)) == [Shard(0, 7, 2)]
        session.evaluate(1.5, 10)
    assert (session.done, session.draining, session.t, session.steps, session.step_count) == (True, False, 5, 9, 0)
    assert session.optimizer_steps == 7
    assert driver.evaluated == (1.5, 10)
    assert driver.closed
