"""The state of torch's optimizers, and what else a program hands over, for a peer.

What an optimizer keeps in the shape of a parameter (`exp_avg`) goes by pieces, as the parameter does; what else it keeps (`step`), the
options of its groups (the rate) and the `state_dict` of what the program hands over are the small rest.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from diloco.algorithm.pieces import Piece
from diloco.learner.inner_state import STEPS, steps_behind
from diloco.learner.store import Float32Array
from diloco.protocol.state_parts import PieceArray, StateError
from diloco.protocol.state_values import MOST_BYTES, Leaf, encode
from diloco.torch.masters import Masters, follow, state_of
from diloco.torch.places import Place, local
from diloco.torch.schedules import ProgressLR
from diloco.torch.staging import StagedTensors, Stager
from diloco.torch.store import ModuleStore

_AS_FLOAT32 = (torch.float32, torch.bfloat16, torch.float16)
"""Types whose values float32 holds exactly."""


@runtime_checkable
class Stateful(Protocol):
    """What a program may hand over: schedulers, scalers, samplers, its own objects."""

    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


type HandedOver = Stateful | torch.Generator
type _States = dict[torch.Tensor, dict[str, Any]]
type _Groups = list[dict[str, Any]]


@contextlib.contextmanager
def _fitting() -> Iterator[None]:
    """Raise StateError where a copy has another structure than this program's state."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise StateError(f"the donor's state does not fit this program: {type(error).__name__}: {error}") from error


class OptimizerState:
    """A `CountedState` of the optimizers of a `ModuleStore`'s parameters."""

    def __init__(self, store: ModuleStore, optimizers: Sequence[torch.optim.Optimizer], handed_over: Sequence[HandedOver] = ()) -> None:
        """Raise TypeError for what has no state that can be handed over."""
        self.steps = 0
        """See `CountedState`."""
        self._store = store
        # accelerate's optimizer holds the real one.
        self._optimizers = [
            inner if isinstance(inner := getattr(one, "optimizer", None), torch.optim.Optimizer) else one for one in optimizers
        ]
        self._handed_over = [one for one in handed_over if not isinstance(one, ProgressLR)]  # these follow the job
        for one in self._handed_over:
            _check(one)
        self._names = {id(parameter): name for name, parameter in store.parameters.trained.items()}
        self._masters = Masters(self._optimizers)
        self._stager = Stager(pinned=any(parameter.device.type == "cuda" for parameter in store.parameters.trained.values()))
        self._new: dict[str, dict[str, torch.Tensor]] = {}
        """By parameter what was put of a copy."""

    @property
    def kind(self) -> str:
        return "torch " + ", ".join(type(one).__name__ for one in (*self._optimizers, *self._handed_over))

    @property
    def lent(self) -> bool:
        """Never: steps change the state in place."""
        return False

    def held(self) -> Sequence[Piece]:
        return self._store.held()

    def warm_up(self, parts: Sequence[Sequence[Piece]]) -> None:
        """Do nothing: nothing is compiled."""

    def arrays(self, pieces: Sequence[Piece]) -> list[PieceArray]:
        found = []
        for piece in pieces:
            parameter = self._store.parameter(piece.tensor)
            found.append(PieceArray(piece, "", _name(parameter.dtype)))
            for key, value in sorted(state_of(self._optimizers, parameter).items()):
                if not _is_shaped(value, parameter):
                    continue
                if value.dtype not in _AS_FLOAT32:
                    raise StateError(f"the optimizer's {key} of {piece.tensor} is {value.dtype}, which does not travel as float32")
                found.append(PieceArray(piece, key, _name(value.dtype)))
        return found

    def stage(self, arrays: Sequence[PieceArray]) -> StagedTensors:
        places, tensors = [], []
        for one in arrays:
            place, parameter = self._store.placed(one.piece)
            source = state_of(self._optimizers, parameter)[one.name] if one.name else parameter
            places.append(place)
            tensors.append(_at(source, place))
        return self._stager.stage(places, tensors)

    def stage_rest(self) -> _Rest:
        events: list[torch.cuda.Event] = []
        keep = _Keeper(events)
        optimizers = []
        for optimizer in self._optimizers:
            # Without the tensors of this process: names stand for them.
            groups = [{key: keep(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
            states, masters = {}, {}
            for parameter, state in optimizer.state.items():
                if (name := self._names.get(id(parameter))) is not None:
                    states[name] = {key: keep(value) for key, value in state.items() if not _is_shaped(value, parameter)}
                    masters[name] = self._masters.keys(name, parameter)
            optimizers.append({"groups": groups, "state": states, "masters": {name: keys for name, keys in masters.items() if keys}})
        handed_over = [keep(_state_of(one)) for one in self._handed_over]
        return _Rest({"optimizers": optimizers, "handed over": handed_over, STEPS: self.steps}, events)

    def begin(self) -> None:
        self._new.clear()

    @torch.no_grad()
    def put(self, array: PieceArray, values: Float32Array) -> None:
        try:
            place, parameter = self._store.placed(array.piece)
        except KeyError as error:
            raise StateError(f"tensor {array.piece.tensor} is not of this model") from error
        if array.name:
            of_parameter = self._new.setdefault(place.part.parameter, {})
            if array.name not in of_parameter:
                of_parameter[array.name] = torch.zeros_like(parameter, dtype=_dtype(array.dtype), requires_grad=False)
            target = _at(of_parameter[array.name], place)
        else:
            # At once, unlike moments: if the copy breaks off, the next one or the syncer overwrites it.
            target = _at(parameter, place)
        value = values.reshape(array.piece.size)
        target.copy_(torch.from_numpy(np.array(value if place.axes is None else value.transpose(np.argsort(place.axes)))))

    def check(self, rest: Any) -> None:
        with _fitting():
            self._read(rest["optimizers"], rest["handed over"])
            steps_behind(rest)

    @torch.no_grad()
    def finish(self, rest: Any) -> None:
        with _fitting():
            steps = steps_behind(rest)
            self._finish(rest["optimizers"], rest["handed over"])
        self.steps = steps

    def _read(self, optimizers: Sequence[Mapping[str, Any]], handed_over: Sequence[Any]) -> tuple[list[_States], list[Any], list[_Groups]]:
        """Return what a copy makes of the optimizers' states, of what was handed over, and of the optimizers' groups."""
        parameters = self._store.parameters.trained
        for optimizer, saved in zip(self._optimizers, optimizers, strict=True):
            if len(saved["groups"]) != len(optimizer.param_groups):
                raise ValueError(f"the donor's {type(optimizer).__name__} has {len(saved['groups'])} groups")
        read = _Reader(self._store.device)
        states: list[_States] = []
        for saved in optimizers:
            states.append({})
            for name, small in saved["state"].items():
                shaped = self._new.get(name, {})
                states[-1][parameters[name]] = {**{key: read(value) for key, value in small.items()}, **shaped}
        objects = [read(one) for _, one in zip(self._handed_over, handed_over, strict=True)]
        return states, objects, [[{key: read(value) for key, value in options.items()} for options in one["groups"]] for one in optimizers]

    def _finish(self, optimizers: Sequence[Mapping[str, Any]], handed_over: Sequence[Any]) -> None:
        states, objects, of_groups = self._read(optimizers, handed_over)
        # First what may refuse its state: the optimizers are as they were then.
        for one, handed in zip(self._handed_over, objects, strict=True):
            _load(one, handed)
        for optimizer, groups, state in zip(self._optimizers, of_groups, states, strict=True):
            for group, options in zip(optimizer.param_groups, groups, strict=True):
                group.update(options)
            # What the donor does not have would stay, from a training that the copy replaces.
            optimizer.state.clear()
            optimizer.state.update(state)
        for saved, state in zip(optimizers, states, strict=True):
            masters = saved.get("masters", {})  # a version that did not say which they are may have stored it
            for parameter, values in state.items():
                for key in masters.get(self._names[id(parameter)], ()):
                    if isinstance(value := values.get(key), torch.Tensor) and _is_shaped(value, parameter):
                        follow(value, parameter)
        self._new = {}


class _Rest:
    """A `StagedRest`: its tensors are copies, on their way to the host until the events have come."""

    def __init__(self, tree: Any, events: Sequence[torch.cuda.Event]) -> None:
        self._tree = tree
        self._events = events

    def wait(self) -> Any:
        for event in self._events:
            event.synchronize()
        return _leaves(self._tree)


class _Keeper:
    """Copies what may change with the next step. Of what is on a CUDA device the host does not wait for the copy."""

    def __init__(self, events: list[torch.cuda.Event]) -> None:
        self._events = events

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, Mapping):
            return {key: self(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self(one) for one in value) if type(value) in (list, tuple) else value
        return value

    def _tensor(self, value: torch.Tensor) -> tuple[str, torch.Tensor, bool]:
        if hasattr(value, "device_mesh"):
            raise StateError("the optimizer keeps a sharded tensor that has not the shape of its parameter: it cannot be handed over")
        if value.nbytes > MOST_BYTES:
            raise StateError(f"the optimizer keeps a tensor of shape {list(value.shape)} that has not the shape of its parameter")
        if value.device.type != "cuda":
            return _TENSOR, value.detach().to("cpu", copy=True), value.device.type == "cpu"
        host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        host.copy_(value.detach(), non_blocking=True)
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        self._events.append(event)
        return _TENSOR, host, False


_TENSOR = "a tensor of this process"
"""Marks what `_Keeper` has made of a tensor."""


def _leaves(tree: Any) -> Any:
    """Tensors as `Leaf`s."""
    if isinstance(tree, tuple) and len(tree) == 3 and tree[0] is _TENSOR:
        _, value, on_host = tree
        data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return Leaf(_name(value.dtype), tuple(value.shape), data, on_host)
    if isinstance(tree, dict):
        return {key: _leaves(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_leaves(value) for value in tree)
    if isinstance(tree, np.generic):
        return tree.item()
    if isinstance(tree, np.ndarray):
        return _leaves((_TENSOR, torch.from_numpy(np.ascontiguousarray(tree)), True))
    return tree


class _Reader:
    """`Leaf`s as tensors, on the device where the donor's kind of place is here."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(self, tree: Any) -> Any:
        if isinstance(tree, Leaf):
            flat = torch.frombuffer(bytearray(tree.data), dtype=torch.uint8) if tree.data else torch.empty(0, dtype=torch.uint8)
            value = flat.view(_dtype(tree.dtype)).reshape(tree.shape)
            return value if tree.on_host else value.to(self._device)
        if isinstance(tree, dict):
            return {key: self(value) for key, value in tree.items()}
        if isinstance(tree, list | tuple):
            return type(tree)(self(value) for value in tree)
        return tree


def _check(one: HandedOver) -> None:
    if not isinstance(one, torch.Generator | Stateful):
        raise TypeError(f"state must hold objects with state_dict and load_state_dict, or torch.Generators, not {type(one).__name__}")
    try:
        # When the program begins: else it would be found out by the first peer that needs it.
        encode(_leaves(_Keeper([])(_state_of(one))))
    except StateError as error:
        raise TypeError(f"the state of {type(one).__name__} cannot be handed over to another process: {error}") from error


def _state_of(one: HandedOver) -> Any:
    return one.get_state() if isinstance(one, torch.Generator) else one.state_dict()


def _load(one: HandedOver, state: Any) -> None:
    if isinstance(one, torch.Generator):
        one.set_state(state.cpu())
    else:
        one.load_state_dict(state)


def _is_shaped(value: object, parameter: torch.Tensor) -> bool:
    """Whether it goes by pieces. A step count is none, also of a parameter that is a number."""
    return isinstance(value, torch.Tensor) and value.ndim > 0 and value.shape == parameter.shape


def _at(tensor: torch.Tensor, place: Place) -> torch.Tensor:
    return local(tensor)[(*place.where, ...)]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise StateError(f"the donor keeps values as {name}, which this version of torch does not know")
    return found
