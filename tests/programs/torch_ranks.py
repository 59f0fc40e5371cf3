"""The ranks of a unit: what several processes stage, apply and fill is what one process would. Ends with an assertion otherwise.

torch_ranks.py RANKS FOLDER KIND…; a KIND is a key of SHARDINGS. The ranks are forked, since torch takes 3 s of a core to import.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch._dynamo  # torch does so itself in the first optimizer or DDP of a process, which takes another second
from builders.master_sgd import MasterSGD
from diloco.algorithm.fragments import Fragment, make_fragments
from diloco.algorithm.layout import Layout, LayoutError
from diloco.algorithm.pieces import Piece, Portion, check_cover, portion
from diloco.canonical import Canonical
from diloco.learner.leave import LoopError
from diloco.torch import ModuleStore
from diloco.torch.adoption_check import AdoptionCheck
from diloco.torch.processes import gather_bytes
from diloco.torch.trained import TrainedParameters
from torch import distributed, nn
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

CANONICAL: dict[str, Canonical | str] = {
    "up.weight": Canonical("up.kernel", axes=(1, 0)),
    "stack": Canonical("layer.{layer}.w", axes=(1, 0), stacked=True),
}


class Model(nn.Module):
    """Sizes that no number of ranks divides, an odd vector, a scalar, a stack of layers, two types, and a frozen base."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.up = nn.Linear(6, 8)
        self.down = nn.Linear(8, 6)
        self.odd = nn.Linear(7, 5, dtype=torch.bfloat16)
        self.stack = nn.Parameter(torch.randn(3, 4, 5))
        self.base = nn.Linear(5, 9).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(self.up(x).relu())
        return y


def ddp(model: nn.Module, ranks: int) -> nn.Module:
    return DistributedDataParallel(model)


def fsdp(model: nn.Module, ranks: int) -> nn.Module:
    for module in (model.get_submodule("up"), model):
        fully_shard(module, mesh=init_device_mesh("cpu", (ranks,)))
    return model


def fsdp_by_column(model: nn.Module, ranks: int) -> nn.Module:
    """Along the last axis where it divides evenly, as torch demands of all but the first."""
    mesh = init_device_mesh("cpu", (ranks,))
    fully_shard(model, mesh=mesh, shard_placement_fn=lambda one: Shard(one.dim() - 1 if one.shape[-1] % ranks == 0 else 0))
    return model


def hsdp(model: nn.Module, ranks: int) -> nn.Module:
    fully_shard(model, mesh=init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard")))
    return model


def tensor_parallel(model: nn.Module, ranks: int) -> nn.Module:
    return parallelize_module(model, init_device_mesh("cpu", (ranks,)), {"up": ColwiseParallel(), "down": RowwiseParallel()})


def two_dimensional(model: nn.Module, ranks: int) -> nn.Module:
    """Both cut the rows of `up`, so that its placements are a strided shard and a shard."""
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("data", "model"))
    parallelize_module(model, mesh["model"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    return model


def compiled(model: nn.Module) -> nn.Module:
    return cast("nn.Module", torch.compile(model))


def compiled_then_ddp(model: nn.Module, ranks: int) -> nn.Module:
    return ddp(compiled(model), ranks)


def fsdp_then_compiled(model: nn.Module, ranks: int) -> nn.Module:
    return compiled(fsdp(model, ranks))


SHARDINGS: dict[str, Callable[[nn.Module, int], nn.Module]] = {
    "ddp": ddp,
    "fsdp": fsdp,
    "fsdp_by_column": fsdp_by_column,
    "hsdp": hsdp,
    "tensor_parallel": tensor_parallel,
    "two_dimensional": two_dimensional,
    "compiled_then_ddp": compiled_then_ddp,
    "fsdp_then_compiled": fsdp_then_compiled,
}


def names(fragment: Fragment) -> list[str]:
    return [tensor.name for tensor in fragment.tensors]


def whole_of(parts: list[np.ndarray], portions: list[Portion], fragment: Fragment) -> np.ndarray:
    values = np.full(fragment.size, np.nan, np.float32)
    for part, share in zip(parts, portions, strict=True):
        share.place(part, values)
    return values


def everything(module: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: (parameter.full_tensor() if isinstance(parameter, DTensor) else parameter).detach()
        for name, parameter in module.named_parameters()
    }


def check(kind: str, rank: int, ranks: int) -> None:
    twin = ModuleStore(Model(), canonical=CANONICAL)
    layout = Layout(twin.specs(), twin.frozen())
    module = SHARDINGS[kind](Model(), ranks)
    store = ModuleStore(module, canonical=CANONICAL)
    store.divide()
    cpu = torch.device("cpu")

    assert Layout(store.specs(), store.frozen()).difference(layout) == [], "the same model, the same frozen base"
    said = json.dumps([[piece.tensor, piece.start, piece.size] for piece in store.owned()])
    owned = [[Piece(name, tuple(start), tuple(size)) for name, start, size in json.loads(one)] for one in gather_bytes(said.encode(), cpu)]
    check_cover(layout, owned)
    assert owned[rank] == list(store.owned())
    loads = [sum(piece.elements for piece in pieces) for pieces in owned]
    if kind.endswith("ddp"):  # elsewhere torch cuts the tensors, and small ones unevenly
        assert max(loads) - min(loads) < layout.size / ranks / 2, f"no rank sends much more than another: {loads}"

    for fragment in make_fragments(layout, 2):
        portions = [portion(fragment, pieces) for pieces in owned]
        mine = portions[rank]
        staged = store.stage(names(fragment))
        parts = [np.frombuffer(one, np.float32) for one in gather_bytes(staged.wait().tobytes(), cpu)]
        staged.release()
        expected = twin.stage(names(fragment)).wait()
        assert whole_of(parts, portions, fragment).tobytes() == expected.tobytes(), "stage"

        values = np.random.default_rng(fragment.index).standard_normal(fragment.size, np.float32)
        before = everything(module)
        ready = store.prepare(names(fragment), mine.cut(values))
        assert all(torch.equal(before[name], value) for name, value in everything(module).items()), "prepare changes nothing"
        store.apply(ready)
        store.fill(names(fragment))
        twin.apply(twin.prepare(names(fragment), values))
        rounded = store.rounded(names(fragment), mine.cut(values))
        assert rounded.tobytes() == mine.cut(twin.rounded(names(fragment), values)).tobytes(), "rounded"
    # What each rank computes with, gathered where it is sharded, is what one process would have.
    final = ModuleStore(Model(), canonical=CANONICAL)
    for name, value in everything(module).items():
        plain = name.replace("_orig_mod.", "").removeprefix("module.").replace("_orig_mod.", "")
        final.parameters.all()[plain].data.copy_(value)
    group = [spec.name for spec in twin.specs()]
    digests = gather_bytes(final.stage(group).wait().tobytes(), cpu)
    assert set(digests) == {twin.stage(group).wait().tobytes()}, "every rank has the same values, those of one process"
    if kind == "fsdp":
        check_trained(ranks)
        check_gathered(ranks)
    if kind == "ddp":
        assert {name: value.tobytes() for name, value in store.read(group).items()} == {
            name: value.tobytes() for name, value in twin.read(group).items()
        }
        other = ModuleStore(nn.Linear(2, 2 + rank))
        try:
            other.divide()
        except LayoutError as error:
            assert "rank 1 trains other parameters than rank 0" in str(error)  # noqa: PT017 - no pytest here
        else:
            raise AssertionError("ranks with different models agreed")
        check_buffers(rank)
        check_masters(ranks)


def check_trained(ranks: int) -> None:
    """An evaluation leaves what FSDP has gathered in the model, and these are the parameters that joined all the same."""
    module = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 6))
    fully_shard(module, mesh=init_device_mesh("cpu", (ranks,)))
    trained = TrainedParameters(module, ModuleStore(module).parameters, [torch.optim.SGD(module.parameters(), lr=0.1)])
    with torch.no_grad():
        module(torch.ones(2, 6))
    assert not any(isinstance(parameter, DTensor) for parameter in module.parameters()), "gathered"
    trained.check()
    module[1].bias = nn.Parameter(torch.zeros(6))
    try:
        trained.check()
    except LoopError as error:
        assert "in the place of 1.bias" in str(error)  # noqa: PT017 - no pytest here
    else:
        raise AssertionError("another parameter was not found")


def check_gathered(ranks: int) -> None:
    """A model that FSDP has gathered, and keeps after a forward pass without a backward pass, joins sharded and computes with what it
    adopts."""
    for kept in (None, False):  # None: by the outermost module only
        module = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 6))
        for child in (module[0], module):
            fully_shard(child, mesh=init_device_mesh("cpu", (ranks,)), reshard_after_forward=kept)
        store = ModuleStore(module)
        store.divide()
        names = [spec.name for spec in store.specs()]
        module(torch.ones(2, 6))
        store.apply(store.prepare(names, np.full(sum(piece.elements for piece in store.owned()), 0.5, np.float32)))
        store.fill(names)
        # 6 * 0.5 + 0.5 = 3.5 in the first layer, 8 * 3.5 * 0.5 + 0.5 in the second
        assert module(torch.ones(2, 6)).unique().tolist() == [14.5], "adopted"
        store.write({spec.name: np.full(spec.shape, 1.0, np.float32) for spec in store.specs()})
        # 6 + 1 = 7, 8 * 7 + 1
        assert module(torch.ones(2, 6)).unique().tolist() == [57.0], "written"
        assert ModuleStore(module).owned() == store.held(), "the part of this rank, although all is gathered"


def check_buffers(rank: int) -> None:
    """They are each rank's own, or on request those of rank 0 after an adoption."""
    for leaders in (False, True):
        norm = nn.BatchNorm1d(3)
        module = nn.Sequential(nn.Linear(3, 3), norm)
        store = ModuleStore(module)
        store.divide(leaders_buffers=leaders)
        module(torch.arange(6.0).view(2, 3) + rank)  # the running mean moves by a tenth of the mean
        own = {name: buffer.clone() for name, buffer in module.named_buffers()}
        store.fill(["0.weight"])
        of_rank_0 = gather_bytes(own["1.running_mean"].numpy().tobytes(), torch.device("cpu"))[0]
        assert (own["1.running_mean"].numpy().tobytes() == of_rank_0) == (rank == 0), "they differ before"
        expected = of_rank_0 if leaders else own["1.running_mean"].numpy().tobytes()
        assert norm.running_mean is not None
        assert norm.running_mean.numpy().tobytes() == expected
        assert norm.num_batches_tracked is not None
        assert norm.num_batches_tracked.item() == 1
    try:
        ModuleStore(nn.BatchNorm1d(3 + rank)).divide(leaders_buffers=True)
    except LayoutError as error:
        assert "has other buffers than this one" in str(error)  # noqa: PT017 - no pytest here
    else:
        raise AssertionError("ranks with different buffers agreed")


def check_masters(ranks: int) -> None:
    """The next step of every rank goes on from what was adopted, also where another rank owns it."""
    sizes = {"weight": (2 * ranks, 3), "scalar": (), "zeros": (2 * ranks,)}
    torch.manual_seed(1)
    module = nn.ParameterDict({name: nn.Parameter(torch.randn(size).bfloat16()) for name, size in sizes.items()})
    module["zeros"].data.zero_()
    store = ModuleStore(module)
    store.divide()
    optimizer = MasterSGD(module.parameters(), 1e-6)
    store.adoption_check = AdoptionCheck([optimizer])

    def step() -> None:
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    step()  # the masters exist from now on
    module["zeros"].data.zero_()
    optimizer.state[module["zeros"]]["master_param"].zero_()
    names = [spec.name for spec in store.specs()]
    for adopted in (2.0, 3.0):
        store.apply(store.prepare(names, np.full(sum(piece.elements for piece in store.owned()), adopted, np.float32)))
        store.fill(names)
        step()
        # A parameter of zeros equals any state of zeros. Its masters are found at the adoption after that.
        known = [name for name in names if name != "zeros" or adopted == 3.0]
        # A step moves by 1e-6, less than a rounding step.
        assert {name: set(module[name].flatten().tolist()) for name in known} == {name: {adopted} for name in known}, "masters"


def be_rank(rank: int, ranks: int, folder: Path, kinds: list[str]) -> None:
    distributed.init_process_group("gloo", store=FileStore(str(folder / "store"), ranks), rank=rank, world_size=ranks)
    for kind in kinds:
        try:
            check(kind, rank, ranks)
        except Exception as error:
            error.add_note(f"{kind}, rank {rank} of {ranks}")
            raise
    distributed.destroy_process_group()


def main() -> int:
    """1 if a rank failed. Those that wait for it end when its connections break."""
    ranks, folder, kinds = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=be_rank, args=(rank, ranks, folder, kinds)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return int(any(process.exitcode != 0 for process in processes))


if __name__ == "__main__":
    sys.exit(main())
