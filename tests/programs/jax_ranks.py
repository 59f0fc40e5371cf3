"""One process of a unit in JAX: what several stage, apply and fill is what one process would. Ends with an assertion otherwise.

jax_ranks.py RANK RANKS PORT, with JAX_NUM_CPU_DEVICES for the number of devices of each process.
"""

from __future__ import annotations

import json
import sys
import tracemalloc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Piece, check_cover, portion
from diloco.canonical import Canonical
from diloco.jax import TreeStore
from diloco.jax.inner_state import TreeState
from diloco.jax.unit_store import UnitStore
from diloco.protocol.state_parts import PieceArray
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

CANONICAL = {
    "layers": Canonical("layer.{layer}.w", axes=(1, 0), stacked=True),
    "both": Canonical("both.kernel", axes=(2, 0, 1)),
    "apart": Canonical("apart.{layer}", stacked=True),
}
SPECS = {
    "rows": ("data", None),
    "columns": (None, "model"),
    "grid": ("data", "model"),
    "both": (("data", "model"), None, None),
    "layers": (None, "model", None),
    "apart": ("data", None),
    "everywhere": (None, None),
    "short": (None,),
    "number": (),
    "base": ("data", None),
}


def tree() -> dict[str, np.ndarray]:
    chance = np.random.default_rng(1)
    shapes: dict[str, tuple[int, ...]] = {
        "rows": (4, 3), "columns": (3, 4), "grid": (4, 6), "both": (4, 2, 3), "layers": (3, 4, 5), "apart": (4, 3),
        "everywhere": (5, 7), "short": (3,), "number": (), "base": (4, 3), "local": (5, 2),
    }  # fmt: skip
    values = {name: chance.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    return values | {"short": values["short"].astype(jnp.bfloat16)}


def trained(path: str) -> bool:
    return path != "base"


def gather(data: bytes) -> list[bytes]:
    sizes = np.asarray(multihost_utils.process_allgather(np.array([len(data)], np.int32))).reshape(-1)
    padded = np.zeros(max(sizes), np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    every = np.asarray(multihost_utils.process_allgather(padded)).reshape(len(sizes), -1)
    return [one[:size].tobytes() for one, size in zip(every, sizes, strict=True)]


def spread(mesh: jax.sharding.Mesh, value: np.ndarray, axes: tuple[Any, ...]) -> jax.Array:
    sharding = NamedSharding(mesh, PartitionSpec(*axes))  # type: ignore[no-untyped-call]

    def part(index: Any) -> np.ndarray:
        piece: np.ndarray = value[index]
        return piece

    return jax.make_array_from_callback(value.shape, sharding, part)


def check_state(mesh: jax.sharding.Mesh) -> None:
    """A process takes what it stores of an optimizer's state, and needs host memory for no more than that."""
    values = tree() | {"large": np.arange(1 << 18, dtype=np.float32).reshape(512, 512)}
    specs = SPECS | {"large": (None, ("data", "model"))}

    def place(every: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        return {name: spread(mesh, value, specs[name]) if name in specs else jnp.asarray(value) for name, value in every.items()}

    store: UnitStore[Any] = UnitStore(place(values), canonical=CANONICAL, trained=trained)
    state = TreeState(store, {"mu": place({name: np.zeros_like(value) for name, value in values.items() if trained(name)})})
    donor: TreeStore[Any] = TreeStore({name: jnp.asarray(value) for name, value in values.items()}, canonical=CANONICAL, trained=trained)
    given = donor.read([spec.name for spec in donor.specs()])
    of_pieces = [(array, np.ascontiguousarray(array.piece.of(given[array.piece.tensor])).reshape(-1)) for array in moments(state)]
    rest = state.stage_rest().wait()
    tracemalloc.start()
    for array, part in of_pieces:
        state.put(array, part)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Half of a moment of 1 MiB, and 256 KiB for the small ones and what Python makes.
    assert most < 3 << 18, f"{most} bytes"
    state.finish(rest)
    for name, leaf in state.opt_state["mu"].items():
        for shard in leaf.addressable_shards:
            assert np.asarray(shard.data).tobytes() == values[name][shard.index].tobytes(), f"mu of {name} on {shard.device}"


def moments(state: TreeState[Any]) -> list[PieceArray]:
    return [array for array in state.arrays(state.held()) if array.name]


def main() -> None:
    rank, ranks, port = (int(one) for one in sys.argv[1:4])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # type: ignore[no-untyped-call]
    jax.distributed.initialize(f"127.0.0.1:{port}", ranks, rank)
    mesh = jax.make_mesh((2, jax.device_count() // 2), ("data", "model"))
    twin: TreeStore[Any] = TreeStore({name: jnp.asarray(value) for name, value in tree().items()}, canonical=CANONICAL, trained=trained)
    placed = {name: spread(mesh, value, SPECS[name]) if name in SPECS else jnp.asarray(value) for name, value in tree().items()}
    add = jax.jit(lambda leaf: leaf + 0, donate_argnums=0)
    store: UnitStore[Any] = UnitStore(placed, canonical=CANONICAL, trained=trained)
    layout = Layout(twin.specs(), twin.frozen())
    assert Layout(store.specs(), store.frozen()).difference(layout) == []

    said = json.dumps([[piece.tensor, piece.start, piece.size] for piece in store.owned()]).encode()
    owned = [[Piece(name, tuple(start), tuple(size)) for name, start, size in json.loads(one)] for one in gather(said)]
    check_cover(layout, owned)
    loads = [sum(piece.elements for piece in pieces) for pieces in owned]
    assert max(loads) - min(loads) < layout.size / ranks / 4, f"no process sends much more than another: {loads}"

    placements = {name: leaf.sharding for name, leaf in store.hand_out().items()}
    committed = {name for name, leaf in store.hand_out().items() if leaf.committed}
    for turn, fragment in enumerate([*make_fragments(layout, 2), *make_fragments(layout, 3)]):
        names = [tensor.name for tensor in fragment.tensors]
        portions = [portion(fragment, pieces) for pieces in owned]
        staged = store.stage(names)
        whole = np.full(fragment.size, np.nan, np.float32)
        for part, share in zip(gather(staged.wait().tobytes()), portions, strict=True):
            share.place(np.frombuffer(part, np.float32), whole)
        staged.release()
        assert whole.tobytes() == twin.stage(names).wait().tobytes(), "stage"

        values = np.random.default_rng(turn).standard_normal(fragment.size, np.float32)
        mine = portions[rank].cut(values)
        assert store.rounded(names, mine).tobytes() == portions[rank].cut(twin.rounded(names, values)).tobytes(), "rounded"
        held = store.hand_out()
        store.take_back(jax.tree.map(add, held))
        store.apply(store.prepare(names, mine))
        store.fill(names)
        twin.apply(twin.prepare(names, values))
        after, expected = store.hand_out(), twin.hand_out()
        assert all(leaf.sharding.is_equivalent_to(placements[name], leaf.ndim) for name, leaf in after.items())
        assert {name for name, leaf in after.items() if leaf.committed} == committed, "else a step is compiled anew"
        for name, leaf in after.items():
            for shard in leaf.addressable_shards:
                assert np.asarray(shard.data).tobytes() == np.asarray(expected[name])[shard.index].tobytes(), f"{name} on {shard.device}"
    every = {spec.name: np.random.default_rng(9).standard_normal(spec.shape, np.float32) for spec in twin.specs()}
    store.write(every)
    twin.write(every)
    for name, leaf in store.hand_out().items():
        for shard in leaf.addressable_shards:
            assert np.asarray(shard.data).tobytes() == np.asarray(twin.hand_out()[name])[shard.index].tobytes(), name
    for name, leaf in store.hand_out().items():
        if trained(name):
            add(leaf)
    assert store.lent
    store.reclaim()  # as at the end of the job: everything is overwritten
    [fragment] = make_fragments(layout, 1)
    values = np.random.default_rng(10).standard_normal(fragment.size, np.float32)
    names = [tensor.name for tensor in fragment.tensors]
    store.apply(store.prepare(names, portion(fragment, owned[rank]).cut(values)))
    store.fill(names)
    twin.apply(twin.prepare(names, values))
    expected = twin.hand_out()
    for name, leaf in store.hand_out().items():
        assert leaf.sharding.is_equivalent_to(placements[name], leaf.ndim)
        for shard in leaf.addressable_shards if trained(name) else ():
            assert np.asarray(shard.data).tobytes() == np.asarray(expected[name])[shard.index].tobytes(), f"{name} made anew"
    store.write(every)
    moved = store.hand_out() | {"local": spread(mesh, tree()["local"], ())}
    try:
        store.take_back(moved)
    except ValueError as error:
        assert "'local' moved" in str(error)  # noqa: PT017 - no pytest here
    else:
        raise AssertionError("what each process owns would have changed")
    assert store.read(["local"])["local"].tobytes() == every["local"].tobytes()
    check_state(mesh)
    jax.distributed.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
