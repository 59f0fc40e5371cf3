from collections.abc import Callable, Iterator
from types import TracebackType

import jax
import jax.numpy as jnp
import numpy as np
from diloco.jax import Session, TreeStore


class RecordingDriver:
    """A fake driver: records its calls, and overwrites a tensor when a test says so."""

    def __init__(self, store: TreeStore[dict[str, jax.Array]]) -> None:
        self.store = store
        self.calls: list[tuple[int, float | None]] = []
        self.adopt_at: dict[int, float] = {}
        self.done = False
        self.draining = False
        self.closed = False
        self.evaluated: tuple[float, int] | None = None

    def batches[T](self, source: Callable[[np.ndarray], T], batch_size: int) -> Iterator[T]:
        yield source(np.arange(batch_size))

    def step(self, *, tokens: int, loss: float | None = None) -> None:
        self.calls.append((tokens, loss))
        if (value := self.adopt_at.get(len(self.calls))) is not None:
            self.store.write({"w": np.full(3, value, np.float32)})

    @property
    def step_count(self) -> int:
        return len(self.calls)

    @property
    def t(self) -> int:
        return 5

    @property
    def steps(self) -> int:
        return 9

    def evaluate(self, held_out_loss: float, tokens: int) -> None:
        self.evaluated = (held_out_loss, tokens)

    def close(self) -> None:
        self.closed = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


def joined() -> tuple[Session[dict[str, jax.Array]], RecordingDriver]:
    store = TreeStore({"w": jnp.zeros(3), "b": jnp.zeros(())})
    driver = RecordingDriver(store)
    return Session(driver, store), driver


def test_a_step_gives_back_the_programs_parameters_with_what_was_adopted() -> None:
    session, driver = joined()
    driver.adopt_at[2] = 9.0
    params = session.step(jax.tree.map(lambda leaf: leaf + 1, session.params), tokens=4, loss=1.5)
    np.testing.assert_array_equal(params["w"], np.ones(3))
    params = session.step(jax.tree.map(lambda leaf: leaf + 1, params), tokens=4, loss=1.25)
    np.testing.assert_array_equal(params["w"], np.full(3, 9.0))
    assert float(params["b"]) == 2
    assert driver.calls == [(4, 1.5), (4, 1.25)]


def test_a_loss_on_the_device_is_reported_one_step_later() -> None:
    session, driver = joined()
    for loss in (3.0, 2.0, 1.0):
        session.step(session.params, tokens=1, loss=jnp.asarray(loss))
    assert driver.calls == [(1, None), (1, 3.0), (1, 2.0)]


def test_a_broadcast_between_two_steps_is_not_lost_in_the_next() -> None:
    session, driver = joined()
    held = session.params
    driver.store.write({"w": np.full(3, 7, np.float32)})  # as the driver does while the program waits for work
    params = session.step(jax.tree.map(lambda leaf: leaf + 1, held), tokens=1)
    np.testing.assert_array_equal(params["w"], np.full(3, 7.0))
    assert float(params["b"]) == 1


def test_the_rest_is_the_drivers() -> None:
    session, driver = joined()
    driver.done = True
    with session as entered:
        assert entered is session
        assert [batch.tolist() for batch in session.batches(lambda numbers: numbers * 2, 3)] == [[0, 2, 4]]
        session.evaluate(1.5, 10)
    assert (session.done, session.draining, session.t, session.steps, session.step_count) == (True, False, 5, 9, 0)
    assert driver.evaluated == (1.5, 10)
    assert driver.closed
