import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import diloco.jax
import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
from builders.exchange import until
from diloco.algorithm.layout import LayoutError
from diloco.canonical import Canonical
from diloco.contract import Exit
from diloco.jax import TreeStore

COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """One entry for every program that XLA compiles while the test runs."""
    seen: list[str] = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event == COMPILED:
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


def tree() -> dict[str, Any]:
    return {
        "embedding": jnp.zeros((4, 2)),
        "blocks": {"w": jnp.zeros((3, 2, 5)), "scale": jnp.ones((3, 2))},
        "head": jnp.zeros((2, 4)),
    }


STACKED = {
    "blocks/w": Canonical("block.{layer}.w", stacked=True, axes=(1, 0)),
    "blocks/scale": Canonical("block.{layer}.scale", stacked=True),
}


def test_leaves_are_named_by_path_and_embeddings_marked_by_it() -> None:
    specs = {spec.name: spec for spec in TreeStore(tree()).specs()}
    assert sorted(specs) == ["blocks/scale", "blocks/w", "embedding", "head"]
    assert [name for name, spec in specs.items() if spec.embedding] == ["embedding"]
    chosen = TreeStore(tree(), embeddings=lambda path: path == "head").specs()
    assert [spec.name for spec in chosen if spec.embedding] == ["head"]


def test_a_stack_of_layers_is_the_layout_of_layers_kept_apart() -> None:
    specs = {spec.name: spec.shape for spec in TreeStore(tree(), canonical=STACKED).specs()}
    assert specs == {
        "embedding": (4, 2),
        "head": (2, 4),
        **{f"block.{layer}.w": (5, 2) for layer in range(3)},
        **{f"block.{layer}.scale": (2,) for layer in range(3)},
    }


def test_a_write_makes_only_the_touched_leaves_anew() -> None:
    before = tree()
    store = TreeStore(before, canonical=STACKED)
    store.write({"head": np.ones((2, 4), np.float32), "block.0.scale": np.zeros(2, np.float32)})
    after = store.hand_out()
    assert after["embedding"] is before["embedding"]
    assert after["blocks"]["w"] is before["blocks"]["w"]
    np.testing.assert_array_equal(before["head"], np.zeros((2, 4)))  # what the program still holds does not change under it
    np.testing.assert_array_equal(after["blocks"]["scale"], [[0, 0], [1, 1], [1, 1]])


@pytest.mark.parametrize("committed", [False, True])
def test_neither_writes_nor_the_next_step_compile_again(compilations: list[str], committed: bool) -> None:
    params = jax.device_put(tree(), jax.devices()[0]) if committed else tree()
    step = jax.jit(lambda params: jax.tree.map(lambda leaf: leaf + 1, params), donate_argnums=0)
    store = TreeStore(params, canonical=STACKED)
    values = {spec.name: np.zeros(spec.shape, np.float32) for spec in store.specs()}

    def one_round() -> None:
        store.take_back(step(store.hand_out()))
        store.read(list(values))
        store.write(values)

    one_round()
    assert compilations  # the listener does hear compilations
    compilations.clear()
    one_round()
    one_round()
    assert compilations == []
    assert step._cache_size() == 1  # type: ignore[attr-defined]


def test_what_is_written_while_the_program_holds_older_values_outlives_its_step() -> None:
    store = TreeStore(tree(), canonical=STACKED)
    held = store.hand_out()
    store.write({"head": np.full((2, 4), 9, np.float32), "block.2.scale": np.full(2, 8, np.float32)})
    store.take_back(jax.tree.map(lambda leaf: leaf + 1, held))
    after = store.hand_out()
    np.testing.assert_array_equal(after["head"], np.full((2, 4), 9))
    np.testing.assert_array_equal(after["blocks"]["scale"], [[2, 2], [2, 2], [8, 8]])
    np.testing.assert_array_equal(after["embedding"], np.ones((4, 2)))


def test_leaves_that_cannot_be_merged_are_refused_by_path() -> None:
    with pytest.raises(LayoutError, match="'state/step' is int32"):
        TreeStore({"state": {"step": jnp.zeros((), jnp.int32)}})
    with pytest.raises(LayoutError, match="'rate' is float"):
        TreeStore({"rate": 0.5})


def test_parameters_that_cannot_be_exchanged_end_the_program_with_a_status_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        diloco.jax.join({"phase": jnp.zeros(3, jnp.complex64)}, (), environment={})
    assert left.value.code == Exit.REFUSED_LAYOUT
    assert "'phase' is complex64" in capsys.readouterr().err


def test_leaves_that_the_filter_leaves_out_are_handed_on_as_they_are() -> None:
    frozen: dict[str, Any] = {"base": jnp.ones((4, 4), jnp.int8), "key": jax.random.key(1), "rate": 0.5, "name": None}
    params: dict[str, Any] = {"adapter": jnp.zeros(3), "frozen": frozen}
    store = TreeStore(params, trained=lambda path: path == "adapter", canonical={"frozen/base": "base"})
    assert [spec.name for spec in store.specs()] == ["adapter"]
    store.write({"adapter": np.ones(3, np.float32)})
    held = store.hand_out()
    assert held["frozen"]["base"] is frozen["base"]
    store.take_back({"adapter": held["adapter"] + 1, "frozen": held["frozen"] | {"rate": 0.25}})
    after = store.hand_out()
    assert (after["adapter"].tolist(), after["frozen"]["rate"]) == ([2, 2, 2], 0.25)
    with pytest.raises(LayoutError, match="selects none of 2"):
        TreeStore({"a": jnp.zeros(1), "b": jnp.zeros(1)}, trained=lambda path: False)


def test_parameters_that_change_their_form_between_steps_are_refused() -> None:
    store = TreeStore({"w": jnp.zeros(3)})
    with pytest.raises(ValueError, match="structure"):
        store.take_back({"v": jnp.zeros(3)})
    with pytest.raises(ValueError, match=r"'w' was float32\[3\] and became float32\[4\]"):
        store.take_back({"w": jnp.zeros(4)})
    with pytest.raises(ValueError, match="became bfloat16"):
        store.take_back({"w": jnp.zeros(3, jnp.bfloat16)})


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["", "jax.set_mesh(mesh)"])
def test_arrays_spread_over_devices_keep_their_placement(mesh: str) -> None:
    program = """
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import NamedSharding, PartitionSpec
        from diloco.canonical import Canonical
        from diloco.jax import TreeStore

        mesh = jax.make_mesh((2,), ("data",))
        MESH
        along = lambda *axes: NamedSharding(mesh, PartitionSpec(*axes))
        params = {
            "w": jax.device_put(jnp.zeros((4, 3)), along("data")),
            "across": jax.device_put(jnp.zeros((2, 4)), along(None, "data")),
            "layers": jax.device_put(jnp.zeros((2, 4)), along("data")),
            "everywhere": jax.device_put(jnp.zeros((2, 4)), along()),
        }
        params["partly"] = jax.device_put(jnp.zeros((2, 3, 4)), along(None, None, "data"))  # an axis that is not sharded before one that is
        stacked = {name: Canonical(name + ".{layer}", stacked=True) for name in ("across", "layers", "everywhere", "partly")}
        step = jax.jit(lambda params: jax.tree.map(lambda leaf: leaf + 1, params), donate_argnums=0)
        params = jax.tree.map(lambda leaf: leaf - leaf, step(step(params)))
        placed = {name: leaf.sharding for name, leaf in params.items()}
        programs = step._cache_size()
        store = TreeStore(params, canonical=stacked)
        store.watch()
        values = {spec.name: np.arange(np.prod(spec.shape), dtype=np.float32).reshape(spec.shape) for spec in store.specs()}
        del values["across.0"]
        for round in range(3):
            store.take_back(step(store.hand_out()))
            store.write(values)
            read = store.read([*values, "across.0"])
            for name, value in values.items():
                np.testing.assert_array_equal(read[name], value)
            np.testing.assert_array_equal(read["across.0"], np.full(4, round + 1))
        assert {name: leaf.sharding for name, leaf in store.hand_out().items()} == placed
        assert step._cache_size() == programs, (programs, step._cache_size())
    """
    run_with_two_devices(program.replace("MESH", mesh))


@pytest.mark.slow
def test_what_was_prepared_is_adopted_as_it_is_by_a_program_that_places_its_parameters_otherwise_meanwhile() -> None:
    run_with_two_devices("""
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        from diloco.canonical import Canonical
        from diloco.jax import TreeStore

        def placed(devices):
            along = lambda *axes: NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec(*axes))
            return {"across": along(None, "data"), "layers": along("data"), "whole": along("data")}

        first, second = jax.devices()
        params = {"across": jnp.zeros((2, 4)), "layers": jnp.zeros((2, 3)), "whole": jnp.zeros((4, 2))}
        store = TreeStore(params, canonical={name: Canonical(name + ".{layer}", stacked=True) for name in ("across", "layers")})
        store.watch()
        names = [spec.name for spec in store.specs()]
        adopt = lambda add: store.apply(store.prepare(names, np.arange(22, dtype=np.float32) + add))
        adopt(0)
        for add, devices in ((100, (first, second)), (200, (second, first)), (300, (second,)), (400, (first, second))):
            held = store.hand_out()
            adopt(add)
            # As a first step with out_shardings, and a program that makes another mesh.
            store.take_back(jax.tree.map(jax.device_put, held, placed(devices)))
            after = store.hand_out()
            flat = np.concatenate([np.asarray(after[name]).reshape(-1) for name in ("across", "layers", "whole")])
            np.testing.assert_array_equal(flat, np.arange(22) + add)
            assert {name: leaf.sharding for name, leaf in after.items()} == placed(devices)
            # Until all adoptions are looked at.
            for _ in range(3):
                jax.block_until_ready([sample.values for sample in store.adoption_check._done])
                store.take_back(jax.tree.map(lambda leaf: leaf + 0, store.hand_out()))
    """)


def run_with_two_devices(program: str) -> None:
    # The number of CPU devices is fixed when JAX starts, hence a process of its own.
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_bit_of_a_staged_leaf_is_kept() -> None:
    # -0.0, the smallest subnormal, infinity, and a NaN with a payload
    bits = np.array([0x80000000, 1, 0x7F800000, 0x7FC12345], np.uint32)
    staged = TreeStore({"w": jnp.asarray(bits.view(np.float32))}).stage(["w"])
    np.testing.assert_array_equal(staged.wait().view(np.uint32), bits)


def test_what_is_staged_does_not_stay_in_the_devices_memory() -> None:
    """A unit with long steps keeps it for the length of a step."""
    store = TreeStore({"a": jnp.ones((4, 3)), "b": jnp.ones(5)})
    others = jax.live_arrays()  # type: ignore[no-untyped-call]  # of tests before, some of them: none is freed while it is held here
    known = {id(array) for array in others}
    staged = store.stage(["a", "b"])
    assert staged.wait().tolist() == [1.0] * 17
    until(lambda: {id(array) for array in jax.live_arrays()} <= known, "the copies to be let go")  # type: ignore[no-untyped-call]
    assert staged.wait().size == 17
    staged.release()
    with pytest.raises(RuntimeError, match="after release"):
        staged.wait()
