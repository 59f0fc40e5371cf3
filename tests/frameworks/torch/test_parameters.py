"""Which parameters of a module are exchanged, what they are called, and what is refused before a job is contacted."""

from __future__ import annotations

from collections.abc import Iterator

import diloco.torch
import pytest
import torch
from diloco.algorithm.layout import LayoutError
from diloco.contract import Exit
from diloco.torch import ModuleStore
from torch import distributed, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore


class Adapted(nn.Module):
    """A linear layer whose int8 base is frozen, with an adapter of rank 2 that is trained: 2 * 24 + 16 * 2 of 16 * 24 values."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Parameter(torch.ones(16, 24, dtype=torch.int8), requires_grad=False)
        self.scale = nn.Parameter(torch.ones(16), requires_grad=False)
        self.down = nn.Linear(24, 2, bias=False)
        self.up = nn.Linear(2, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x @ (self.base.float() * self.scale[:, None]).T + self.up(self.down(x))
        return y


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process."""
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def names(store: ModuleStore) -> list[str]:
    return [spec.name for spec in store.specs()]


def test_only_what_requires_a_gradient_is_exchanged() -> None:
    store = ModuleStore(Adapted())
    assert names(store) == ["down.weight", "up.weight"]
    assert sum(spec.size for spec in store.specs()) == 80


def test_a_filter_selects_by_name() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).requires_grad_(False)
    assert names(ModuleStore(module, trained=lambda name: name.startswith("1."))) == ["1.bias", "1.weight"]


def test_an_optimizer_may_hold_frozen_parameters_and_must_not_train_what_the_filter_leaves_out() -> None:
    module = Adapted()
    adam = torch.optim.Adam(module.parameters())
    with pytest.raises(SystemExit) as left:  # all is well with the model, and this is no pod of a job
        diloco.torch.join(module, optimizer=adam, environment={})
    assert left.value.code == Exit.BAD_CONTRACT
    with pytest.raises(ValueError, match=r"trains up\.weight, which `trained` leaves out"):
        diloco.torch.join(module, optimizer=adam, trained=lambda name: name.startswith("down"), environment={})


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_the_names_of_wrappers_are_no_part_of_the_layout() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(3, 4)  # a name of its own, not of a wrapper
            self.body = checkpoint_wrapper(nn.Linear(4, 2))

    plain = ["body.bias", "body.weight", "module.bias", "module.weight"]
    assert names(ModuleStore(Model())) == plain
    assert names(ModuleStore(DistributedDataParallel(Model()))) == plain
    assert names(ModuleStore(DistributedDataParallel(torch.compile(Model())))) == plain
    assert names(ModuleStore(torch.compile(DistributedDataParallel(Model())))) == plain  # type: ignore[arg-type]
    assert names(ModuleStore(nn.DataParallel(Model()))) == plain
    assert ModuleStore(DistributedDataParallel(Model())).parameter_names(["body.bias"]) == ["body.bias"]


def joined(module: nn.Module, capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    """(status with which a program ends that joins with this module, its message)"""
    with pytest.raises(SystemExit) as left:
        diloco.torch.join(module, optimizer=[], environment={})
    return left.value.code, capsys.readouterr().err


@pytest.mark.usefixtures("alone")
def test_flat_parameters_are_refused_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    for original in (False, True):
        module = nn.Sequential(FullyShardedDataParallel(nn.Linear(3, 4), use_orig_params=original, device_id=torch.device("cpu")))
        status, message = joined(module, capsys)
        assert status == Exit.REFUSED_LAYOUT
        assert "fully_shard" in message


def still(values: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)


def of(**values: torch.Tensor) -> nn.ParameterDict:
    """A module of parameters that are these very tensors."""
    return nn.ParameterDict({name: nn.Parameter(value) for name, value in values.items()})


MEMORY = torch.zeros(20)
MATRIX = torch.zeros(4, 6)

REFUSED: dict[str, tuple[nn.Module, str]] = {
    "complex": (nn.Linear(2, 2, dtype=torch.complex64), "'weight' is torch.complex64"),
    "meta": (nn.Linear(2, 2, device="meta"), "'weight' is on the meta device"),
    "frozen meta": (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta").requires_grad_(False)), "'1.weight' is on the meta"),
    "lazy": (nn.LazyLinear(2), "'weight' has no shape yet"),
    "frozen": (nn.Linear(2, 2).requires_grad_(False), "none requires a gradient"),
    "empty": (of(a=torch.ones(2), b=torch.ones(0, 3)), "'b' of shape [0, 3] has no elements, so that there is nothing to merge"),
    "expanded": (of(a=torch.ones(3, 1).expand(3, 5)), "'a' is expanded: several of its elements share memory"),
    "overlapping": (of(a=MEMORY[:10], b=MEMORY[8:]), "'a' and 'b' share memory: tie them as one object (a.weight = b.weight)"),
    "the same data": (of(a=MEMORY, b=MEMORY), "'a' and 'b' share memory"),
    "data of a frozen one": (nn.ParameterDict({"a": MEMORY[:10], "b": still(MEMORY[8:])}), "'a' and 'b' share memory"),
    "another type": (of(a=MEMORY, b=MEMORY.view(torch.float16)), "'a' and 'b' share memory"),
    "columns that meet": (of(a=MATRIX[:, :3], b=MATRIX[:, 2:]), "'a' and 'b' share memory"),
}


@pytest.mark.parametrize("module", [pytest.param(one, id=name) for name, one in REFUSED.items()])
def test_a_model_that_cannot_be_exchanged_ends_the_program_with_its_own_status(
    module: tuple[nn.Module, str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, message = joined(module[0], capsys)
    assert status == Exit.REFUSED_LAYOUT
    assert module[1] in message


def test_parameters_without_elements_may_be_frozen_and_parts_of_one_tensor_that_do_not_meet_are_exchanged() -> None:
    parts = {"left": MATRIX[:, :3], "right": MATRIX[:, 3:], "first": MEMORY[:10], "second": MEMORY[10:]}
    module = nn.ParameterDict({**of(**parts), "empty": still(torch.ones(0, 3)), "wide": still(torch.ones(1).expand(4))})
    store = ModuleStore(module)
    assert names(store) == ["first", "left", "right", "second"]
    assert {one.name: one.shape for one in store.frozen()} == {"empty": (0, 3), "wide": (4,)}


def test_a_model_that_is_sharded_over_processes_does_not_join_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        module = nn.Linear(3, 5)
        fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
        # Rows 3 and 4 of 5: of an uneven cut the first rank has the larger part.
        assert [(piece.start, piece.size) for piece in ModuleStore(module).owned()] == [((3,), (2,)), ((3, 0), (2, 3))]
        with pytest.raises(ValueError, match="does not hold all of it"):
            ModuleStore(module).read(["weight"])
    finally:
        distributed.destroy_process_group()
    status, message = joined(module, capsys)
    assert status == Exit.REFUSED_LAYOUT
    assert "'bias' is sharded over processes" in message


def test_complex_parameters_may_be_frozen_and_a_mapping_that_does_not_fit_is_refused() -> None:
    module = nn.ParameterDict({"phase": nn.Parameter(torch.zeros(2, dtype=torch.complex64), requires_grad=False), "w": torch.zeros(3)})
    assert names(ModuleStore(module)) == ["w"]
    assert names(ModuleStore(module, canonical={"phase": "rotation"})) == ["w"]
    with pytest.raises(LayoutError, match="does not have: other"):
        ModuleStore(module, canonical={"other": "w"})
