import numpy as np
import pytest
import torch
from diloco.canonical import Canonical
from diloco.torch import ModuleStore
from torch import nn


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.body = nn.Linear(3, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("seen", torch.zeros(1))


def test_tied_parameters_and_buffers_appear_once_and_never() -> None:
    assert [(spec.name, spec.shape) for spec in ModuleStore(Tied()).specs()] == [
        ("body.bias", (3,)),
        ("body.weight", (3, 3)),
        ("table.weight", (5, 3)),
    ]


def test_embedding_modules_are_marked_by_default_and_by_name_on_request() -> None:
    assert [spec.name for spec in ModuleStore(Tied()).specs() if spec.embedding] == ["table.weight"]
    assert [spec.name for spec in ModuleStore(Tied(), embeddings=lambda name: name == "body.bias").specs() if spec.embedding] == [
        "body.bias"
    ]


def test_what_is_written_is_read_again_and_reaches_the_module_in_place() -> None:
    module = nn.Linear(2, 3)
    weight, pointer = module.weight, module.weight.data_ptr()
    store = ModuleStore(module, canonical={"weight": Canonical("kernel", axes=(1, 0))})
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    value.setflags(write=False)
    store.write({"kernel": value})
    assert module.weight is weight
    assert weight.data_ptr() == pointer
    np.testing.assert_array_equal(weight.detach().numpy(), value.T)
    np.testing.assert_array_equal(store.read(["kernel"])["kernel"], value)


def test_adoption_leaves_optimizer_state_and_gradients_alone() -> None:
    module = nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    moment = optimizer.state[module.weight]["exp_avg"].clone()
    ModuleStore(module).write({"weight": np.zeros((2, 2), np.float32)})
    torch.testing.assert_close(optimizer.state[module.weight]["exp_avg"], moment)
    assert module.weight.grad is not None
    assert module.weight.requires_grad


@pytest.mark.slow
def test_a_compiled_module_has_the_layout_of_the_plain_one() -> None:
    module = Tied()
    compiled = torch.compile(module)
    assert isinstance(compiled, torch.nn.Module)
    assert ModuleStore(compiled).specs() == ModuleStore(module).specs()


def test_parameters_in_any_order_of_memory_are_staged_and_overwritten() -> None:
    module = nn.ParameterDict(
        {
            "last": nn.Parameter(torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)),
            "turned": nn.Parameter(torch.arange(6.0).reshape(2, 3).T),
            "part": nn.Parameter(torch.arange(12.0).reshape(3, 4)[:, ::2]),
        }
    )
    strides = {name: parameter.stride() for name, parameter in module.items()}
    store = ModuleStore(module)
    before = {name: parameter.detach().numpy().copy() for name, parameter in module.items()}
    for name, value in store.read(list(before)).items():
        np.testing.assert_array_equal(value, before[name])
    store.write({name: value + 1 for name, value in before.items()})
    for name, parameter in module.items():
        np.testing.assert_array_equal(parameter.detach().numpy(), before[name] + 1)
        assert parameter.stride() == strides[name]


def test_float32_parameters_are_handed_over_in_the_memory_that_they_were_staged_in() -> None:
    store = ModuleStore(nn.Linear(2, 3))
    first = store.stage(["weight", "bias"])
    values = first.wait()
    first.release()
    assert np.shares_memory(store.stage(["bias", "weight"]).wait(), values)
    with pytest.raises(RuntimeError, match="after release"):
        first.wait()


def test_the_parameters_of_tensors_are_named_as_in_the_module() -> None:
    module = nn.ParameterDict({"w": nn.Parameter(torch.zeros(2, 3)), "b": nn.Parameter(torch.zeros(3))})
    store = ModuleStore(module, canonical={"w": Canonical("block.{layer}.w", stacked=True), "b": "bias"})
    assert store.parameter_names(["block.1.w", "bias", "block.0.w"]) == ["w", "b"]
