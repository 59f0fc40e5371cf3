"""The state of torch's optimizers, and what else a program hands over, for a peer.

What an optimizer keeps in the shape of a parameter (`exp_avg`) goes by pieces, as the parameter does; what else it keeps (`step`), the
options of its groups (the rate) and the `state_dict` of what the program hands over are the small rest.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from diloco.algorithm.pieces import Piece, whole
from diloco.learner.inner_state import ARRAYS, STEPS, arrays_of, names_of, steps_behind
from diloco.learner.store import Float32Array
from diloco.protocol.state_parts import PieceArray, StateError
from diloco.protocol.state_values import MOST_BYTES, Leaf, encode
from diloco.torch.kept import kept
from diloco.torch.masters import Masters, follow, state_of
from diloco.torch.optimizers import innermost
from diloco.torch.places import Place, local
from diloco.torch.schedules import ProgressLR
from diloco.torch.staging import StagedTensors, Stager
from diloco.torch.store import ModuleStore

_AS_FLOAT32 = (torch.float32, torch.bfloat16, torch.float16)
"""Types whose values float32 holds exactly."""
_MOST_NAMES = 8
"""Arrays of a parameter's shape that a copy may have where it is not known before the first step what the optimizer keeps."""


@runtime_checkable
class Stateful(Protocol):
    """What a program may hand over: schedulers, scalers, samplers, its own objects."""

    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


type HandedOver = Stateful | torch.Generator


@dataclass(frozen=True, slots=True)
class _Read:
    """What a copy makes of this program's objects."""

    states: Sequence[dict[torch.Tensor, dict[str, Any]]]
    """State of each optimizer, by parameter."""
    masters: Sequence[Mapping[str, Sequence[str]]]
    """Places of masters in these, by name of the parameter."""
    groups: Sequence[Sequence[Mapping[str, Any]]]
    """Options of each group of each optimizer."""
    handed_over: Sequence[Any]
    steps: int


@contextlib.contextmanager
def _fitting() -> Iterator[None]:
    """Raise StateError where a copy has another structure than this program's state."""
    try:
        yield
    except StateError:
        raise
    except Exception as error:  # what a stranger sends is read by torch
        raise StateError(f"the donor's state does not fit this program: {type(error).__name__}: {error}") from error


class OptimizerState:
    """A `CountedState` of the optimizers of a `ModuleStore`'s parameters."""

    def __init__(self, store: ModuleStore, optimizers: Sequence[torch.optim.Optimizer], handed_over: Sequence[HandedOver] = ()) -> None:
        """Raise TypeError for what has no state that can be handed over."""
        self.steps = 0
        """See `CountedState`."""
        self._store = store
        self._optimizers = [*map(innermost, optimizers)]
        self._handed_over = [one for one in handed_over if not isinstance(one, ProgressLR)]  # these follow the job
        for one in self._handed_over:
            _check(one)
        self._names = {id(parameter): name for name, parameter in store.parameters.trained.items()}
        self._masters = Masters(self._optimizers)
        self._stager = Stager(pinned=any(parameter.device.type == "cuda" for parameter in store.parameters.trained.values()))
        self._new: dict[str, dict[str, torch.Tensor]] = {}
        """By parameter what was put of a copy."""
        self._elements: Counter[tuple[str, str]] = Counter()
        """By tensor and array how many elements that was."""
        self._kept: dict[torch.Tensor, Mapping[str, Any]] | None = None
        """By parameter what its optimizer will keep, as far as that is known; None: no copy has begun to come yet."""

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
        arrays = arrays_of(self.arrays([whole(spec) for spec in self._store.specs()]))
        return _Rest({"optimizers": optimizers, "handed over": handed_over, STEPS: self.steps, ARRAYS: arrays}, events)

    def begin(self) -> None:
        self._new.clear()
        self._elements.clear()

    @torch.no_grad()
    def put(self, array: PieceArray, values: Float32Array) -> None:
        try:
            place, parameter = self._store.placed(array.piece)
        except KeyError as error:
            raise StateError(f"tensor {array.piece.tensor} is not of this model") from error
        if array.name:
            of_parameter = self._new.setdefault(place.part.parameter, {})
            if array.name not in of_parameter:
                dtype = self._dtype_of(array, parameter, len(of_parameter))
                of_parameter[array.name] = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
            self._elements[array.piece.tensor, array.name] += array.piece.elements
            target = _at(of_parameter[array.name], place)
        else:
            # At once, unlike moments: if the copy breaks off, the next one or the syncer overwrites it.
            target = _at(parameter, place)
        value = values.reshape(array.piece.size)
        target.copy_(torch.from_numpy(np.array(value if place.axes is None else value.transpose(np.argsort(place.axes)))))

    def _dtype_of(self, array: PieceArray, parameter: torch.Tensor, names: int) -> torch.dtype:
        """Return the type in which an array of a copy is kept here. `names`: how many of this parameter have come. Raises StateError."""
        if (dtype := _dtype(array.dtype)) not in _AS_FLOAT32:
            raise StateError(f"the donor keeps {array.name} of {array.piece.tensor} as {array.dtype}, which does not travel as float32")
        if (expected := self._expected(parameter)) is None:
            if names == _MOST_NAMES:
                raise StateError(f"the donor keeps {array.name} of {array.piece.tensor} beside {names} other arrays")
            return dtype
        own = expected.get(array.name)
        if not isinstance(own, torch.Tensor) or not _is_shaped(own, parameter):
            raise StateError(f"the optimizer keeps no {array.name} of {array.piece.tensor} here")
        return own.dtype

    def _expected(self, parameter: torch.Tensor) -> Mapping[str, Any] | None:
        """Return what the optimizer will keep of a parameter after its first step; None: that is not known."""
        if self._kept is None:
            self._kept = {parameter: found for one in self._optimizers for parameter, found in kept(one).items()}
        return self._kept.get(parameter)

    def check(self, rest: Any) -> None:
        with _fitting():
            read = self._read(rest)
        # Only they know whether they take it: they do, and get back what they had.
        self._give_back(self._hand_over(read.handed_over))

    @torch.no_grad()
    def finish(self, rest: Any) -> None:
        with _fitting():
            read = self._read(rest)
        self._hand_over(read.handed_over)
        # Nothing refuses its state from here on.
        for optimizer, groups, state in zip(self._optimizers, read.groups, read.states, strict=True):
            for group, options in zip(optimizer.param_groups, groups, strict=True):
                group.update(options)
            # What the donor does not have would stay, from a training that the copy replaces.
            optimizer.state.clear()
            optimizer.state.update(state)
        for masters, state in zip(read.masters, read.states, strict=True):
            for parameter, values in state.items():
                for key in masters.get(self._names[id(parameter)], ()):
                    if isinstance(value := values.get(key), torch.Tensor) and _is_shaped(value, parameter):
                        follow(value, parameter)
        self.steps = read.steps
        self._new = {}  # its tensors are the optimizers' now
        self._elements.clear()

    def _read(self, rest: Any) -> _Read:
        """Return what a copy whose arrays were put makes of this program's objects. Raises for one that does not fit."""
        steps = steps_behind(rest)
        self._check_arrays(names_of(rest))
        read = _Reader(self._store.device)
        optimizers = rest["optimizers"]
        states = [self._state(one, read(saved["state"])) for one, saved in zip(self._optimizers, optimizers, strict=True)]
        groups = [_options(one, read(saved["groups"])) for one, saved in zip(self._optimizers, optimizers, strict=True)]
        # A version that did not say which they are may have stored it.
        masters = [saved.get("masters", {}) for saved in optimizers]
        if without := self._new.keys() - {self._names[id(parameter)] for state in states for parameter in state}:
            raise ValueError(f"arrays of {min(without)} came, and no optimizer has a state of it")
        objects = [read(one) for _, one in zip(self._handed_over, rest["handed over"], strict=True)]
        return _Read(states, masters, groups, objects, steps)

    def _check_arrays(self, names: Mapping[str, frozenset[str]] | None) -> None:
        """Raise ValueError unless all of each array came. `names`: by tensor which ones the optimizer had; None: the donor does not say."""
        for piece in self.held():
            place, _ = self._store.placed(piece)
            came = self._new.get(place.part.parameter, {}).keys()
            if names is not None and (differing := came ^ names.get(piece.tensor, frozenset())):
                raise ValueError(f"{min(differing)} of {piece.tensor} is among the arrays or in the small rest only")
            for name in came:
                if self._elements[piece.tensor, name] != piece.elements:
                    raise ValueError(f"{self._elements[piece.tensor, name]} of {piece.elements} elements of {name} of {piece.tensor} came")

    def _state(self, optimizer: torch.optim.Optimizer, saved: Mapping[str, Mapping[str, Any]]) -> dict[torch.Tensor, dict[str, Any]]:
        """Return the state of one optimizer. `saved`: what the copy has of it beside arrays. Raises ValueError."""
        own = {self._names.get(id(parameter)): parameter for group in optimizer.param_groups for parameter in group["params"]}
        found = {}
        for name, small in saved.items():
            state = {**small, **self._new.get(name, {})}
            if not state:
                continue  # it had no gradient yet
            if name not in own:
                raise ValueError(f"{name} is of no {type(optimizer).__name__} here")
            expected = self._expected(own[name])
            if expected is not None and (differing := state.keys() ^ expected.keys()):
                raise ValueError(f"{min(map(str, differing))} of {name} is in one of the two states only")
            if wrong := [key for key in small if expected is not None and not _is_alike(expected[key], small[key])]:
                raise ValueError(f"{wrong[0]} of {name} is not what {type(optimizer).__name__} keeps")
            found[own[name]] = state
        return found

    def _hand_over(self, objects: Sequence[Any]) -> Sequence[Any]:
        """Give each object its state of a copy, and return what all had before. Raises StateError, once they have that again."""
        before = [copy.deepcopy(_state_of(one)) for one in self._handed_over]
        for number, (one, state) in enumerate(zip(self._handed_over, objects, strict=True), 1):
            try:
                _load(one, state)
            except Exception as error:
                self._give_back(before[:number])
                raise StateError(f"{type(one).__name__} does not take the donor's state: {type(error).__name__}: {error}") from error
        return before

    def _give_back(self, before: Sequence[Any]) -> None:
        for one, state in zip(self._handed_over, before, strict=False):
            _load(one, state)


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
            raise StateError(
                f"the optimizer keeps a tensor of shape {list(value.shape)} that has not the shape of its parameter, as optimizers in 8 "
                "bits do: it cannot be handed over"
            )
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


def _options(optimizer: torch.optim.Optimizer, saved: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return a copy's options of an optimizer's groups. Raises ValueError for such as this one cannot have."""
    name = type(optimizer).__name__
    if len(saved) != len(optimizer.param_groups):
        raise ValueError(f"the donor's {name} has {len(saved)} groups")
    for group, options in zip(optimizer.param_groups, saved, strict=True):
        for key, value in options.items():
            if key == "params" or not _is_alike(group.get(key), value):
                raise ValueError(f"{key} of {name} is {group.get(key)!r} here and {value!r} there")
    return saved


def _is_alike(own: Any, other: Any) -> bool:
    """Whether a value may take the place of another one. None may be in the place of any."""
    if own is None or other is None:
        return True
    if isinstance(own, torch.Tensor):
        return isinstance(other, torch.Tensor) and (own.shape, own.dtype) == (other.shape, other.dtype)
    if isinstance(own, list | tuple):
        return type(other) is type(own) and len(other) == len(own) and all(map(_is_alike, own, other))
    if isinstance(own, int | float):
        return isinstance(other, int | float)
    return type(other) is type(own)


def _at(tensor: torch.Tensor, place: Place) -> torch.Tensor:
    return local(tensor)[(*place.where, ...)]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise StateError(f"the donor keeps values as {name}, which this version of torch does not know")
    return found
