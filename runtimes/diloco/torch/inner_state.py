"""The state of torch's optimizers, and of other objects that a program hands over, for a peer.

Tensors that an optimizer keeps in the shape of a parameter (`exp_avg`) travel in pieces, as the parameter does. The rest is small and
travels as one: what else the optimizer keeps (`step`), the options of its groups (the rate), and the `state_dict` of the other objects.

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
from diloco.protocol.state_parts import AS_FLOAT32, PieceArray, StateError
from diloco.protocol.state_values import MOST_BYTES, Leaf, encode
from diloco.torch.kept import CHOICES, ON_DEVICE, kept, shared
from diloco.torch.masters import Masters, follow, state_of
from diloco.torch.optimizers import innermost
from diloco.torch.places import Place, local
from diloco.torch.schedules import ProgressLR
from diloco.torch.staging import StagedTensors, Stager
from diloco.torch.store import ModuleStore

_MOST_NAMES = 8
"""The most arrays of a parameter's shape that a copy may have if it is not known what the optimizer will keep."""


@runtime_checkable
class Stateful(Protocol):
    """An object that a program may hand over: a scheduler, a scaler, a sampler, one of its own."""

    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


type HandedOver = Stateful | torch.Generator


@dataclass(frozen=True, slots=True)
class _Read:
    """The states that a copy gives to this program's objects."""

    states: Sequence[dict[torch.Tensor, dict[str, Any]]]
    """State of each optimizer, by parameter."""
    shared: Sequence[Mapping[str, Any]]
    """What each optimizer keeps under other keys."""
    masters: Sequence[Mapping[str, Sequence[str]]]
    """For each optimizer, the keys of masters in its state, by the parameter's name."""
    groups: Sequence[Sequence[Mapping[str, Any]]]
    """Options of each group of each optimizer."""
    handed_over: Sequence[Any]
    steps: int


@contextlib.contextmanager
def _fitting() -> Iterator[None]:
    """Any error within this context becomes a StateError: the copy has another structure than this program's state."""
    try:
        yield
    except StateError:
        raise
    except Exception as error:  # any: torch reads here what another process sent
        raise StateError(f"the donor's state does not fit this program: {type(error).__name__}: {error}") from error


class OptimizerState:
    """A `CountedState` of the optimizers of a `ModuleStore`'s parameters."""

    def __init__(self, store: ModuleStore, optimizers: Sequence[torch.optim.Optimizer], handed_over: Sequence[HandedOver] = ()) -> None:
        """Raises TypeError for an object in `handed_over` whose state cannot be handed over."""
        self.steps = 0
        """See `CountedState`."""
        self._store = store
        self._optimizers = [*map(innermost, optimizers)]
        self._handed_over = [item for item in handed_over if not isinstance(item, ProgressLR)]  # a ProgressLR follows the job
        for item in self._handed_over:
            _check(item)
        self._names = {id(parameter): name for name, parameter in store.parameters.trained.items()}
        self._masters = Masters(self._optimizers)
        self._stager = Stager(pinned=any(parameter.device.type == "cuda" for parameter in store.parameters.trained.values()))
        self._new: dict[str, dict[str, torch.Tensor]] = {}
        """Arrays of a copy that have come, by parameter and name."""
        self._elements: Counter[tuple[str, str]] = Counter()
        """How many elements have come, by tensor and array."""
        self._kept: dict[torch.Tensor, Mapping[str, Any]] | None = None
        """What the optimizer will keep of each parameter, as far as that is known; None before a copy begins to come."""

    @property
    def kind(self) -> str:
        return "torch " + ", ".join(type(item).__name__ for item in (*self._optimizers, *self._handed_over))

    @property
    def lent(self) -> bool:
        """Never: steps change the state in place."""
        return False

    def held(self) -> Sequence[Piece]:
        return self._store.held()

    def warm_up(self, parts: Sequence[Sequence[Piece]]) -> None:
        """Do nothing: nothing is compiled."""

    def arrays(self, pieces: Sequence[Piece]) -> list[PieceArray]:
        arrays = []
        for piece in pieces:
            parameter = self._store.parameter(piece.tensor)
            arrays.append(PieceArray(piece, "", _name(parameter.dtype)))
            for key, value in sorted(state_of(self._optimizers, parameter).items()):
                if not _is_shaped(value, parameter):
                    continue
                if _name(value.dtype) not in AS_FLOAT32:
                    raise StateError(f"the optimizer's {key} of {piece.tensor} is {value.dtype}, which does not travel as float32")
                arrays.append(PieceArray(piece, key, _name(value.dtype)))
        return arrays

    def stage(self, arrays: Sequence[PieceArray]) -> StagedTensors:
        places, tensors = [], []
        for array in arrays:
            place, parameter = self._store.placed(array.piece)
            source = state_of(self._optimizers, parameter)[array.name] if array.name else parameter
            places.append(place)
            tensors.append(_at(source, place))
        return self._stager.stage(places, tensors)

    def stage_rest(self) -> _Rest:
        events: list[torch.cuda.Event] = []
        keep = _Keeper(events)
        optimizers = []
        for optimizer in self._optimizers:
            # Parameters are tensors of this process only; in the copy, their names stand for them.
            groups = [{key: keep(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
            states, masters = {}, {}
            for parameter, state in optimizer.state.items():
                if (name := self._names.get(id(parameter))) is not None:
                    states[name] = {key: keep(value) for key, value in state.items() if not _is_shaped(value, parameter)}
                    masters[name] = self._masters.keys(name, parameter)
            named = {name: keys for name, keys in masters.items() if keys}
            optimizers.append({"groups": groups, "state": states, "shared": keep(shared(optimizer)), "masters": named})
        handed_over = [keep(_state_of(item)) for item in self._handed_over]
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
            # Parameters are overwritten at once, unlike moments: if the copy breaks off, the next copy or the syncer overwrites them.
            target = _at(parameter, place)
        value = values.reshape(array.piece.size)
        target.copy_(torch.from_numpy(np.array(value if place.axes is None else value.transpose(np.argsort(place.axes)))))

    def _dtype_of(self, array: PieceArray, parameter: torch.Tensor, names: int) -> torch.dtype:
        """Return the type in which this process keeps an array of a copy. `names`: how many arrays of this parameter have come. Raises
        StateError."""
        if array.dtype not in AS_FLOAT32:
            raise StateError(f"the donor keeps {array.name} of {array.piece.tensor} as {array.dtype}, which does not travel as float32")
        if (expected := self._expected(parameter)) is None:
            if names == _MOST_NAMES:
                raise StateError(f"the donor keeps {array.name} of {array.piece.tensor} beside {names} other arrays")
            return _dtype(array.dtype)
        own = expected.get(array.name)
        if not isinstance(own, torch.Tensor) or not _is_shaped(own, parameter):
            raise StateError(f"the optimizer keeps no {array.name} of {array.piece.tensor} here")
        return own.dtype

    def _expected(self, parameter: torch.Tensor) -> Mapping[str, Any] | None:
        """Return what the optimizer will keep of a parameter after its first step; None if that is not known."""
        if self._kept is None:
            self._kept = {parameter: state for optimizer in self._optimizers for parameter, state in kept(optimizer).items()}
        return self._kept.get(parameter)

    def check(self, rest: Any) -> None:
        with _fitting():
            read = self._read(rest)
        # Only the objects themselves know whether they accept the state. So they load it, and then get back what they had.
        self._give_back(self._hand_over(read.handed_over))

    @torch.no_grad()
    def finish(self, rest: Any) -> None:
        with _fitting():
            read = self._read(rest)
        self._hand_over(read.handed_over)
        # From here on nothing can fail, so the state is never half replaced.
        for optimizer, groups, state, others in zip(self._optimizers, read.groups, read.states, read.shared, strict=True):
            for group, options in zip(optimizer.param_groups, groups, strict=True):
                group.update(options)
            # Cleared first: parameters that have no state at the donor have one of a training that the copy replaces.
            new = {**shared(optimizer), **others, **state}
            optimizer.state.clear()
            optimizer.state.update(new)
        for masters, state in zip(read.masters, read.states, strict=True):
            for parameter, values in state.items():
                for key in masters.get(self._names[id(parameter)], ()):
                    if isinstance(value := values.get(key), torch.Tensor) and _is_shaped(value, parameter):
                        follow(value, parameter)
        self.steps = read.steps
        self._new = {}  # its tensors belong to the optimizers now
        self._elements.clear()

    def _read(self, rest: Any) -> _Read:
        """Return the states that a copy gives to this program's objects, once its arrays were put. Raises if the copy does not fit."""
        steps = steps_behind(rest)
        self._check_arrays(names_of(rest))
        read = _Reader(self._store.device)
        optimizers = rest["optimizers"]
        states = [self._state(item, saved["state"]) for item, saved in zip(self._optimizers, optimizers, strict=True)]
        others = [_shared(item, read(saved.get("shared", {}))) for item, saved in zip(self._optimizers, optimizers, strict=True)]
        groups = [_options(item, read(saved["groups"])) for item, saved in zip(self._optimizers, optimizers, strict=True)]
        # A stored state may be from a version that named neither the masters nor what is shared.
        masters = [saved.get("masters", {}) for saved in optimizers]
        if without := self._new.keys() - {self._names[id(parameter)] for state in states for parameter in state}:
            raise ValueError(f"arrays of {min(without)} came, and no optimizer has a state of it")
        objects = [read(item) for _, item in zip(self._handed_over, rest["handed over"], strict=True)]
        return _Read(states, others, masters, groups, objects, steps)

    def _check_arrays(self, names: Mapping[str, frozenset[str]] | None) -> None:
        """Raise ValueError unless all arrays came, and each as a whole. `names`: the donor's arrays, by tensor; None if it does not say."""
        for piece in self.held():
            place, _ = self._store.placed(piece)
            names_received = self._new.get(place.part.parameter, {}).keys()
            if names is not None and (differing := names_received ^ names.get(piece.tensor, frozenset())):
                raise ValueError(f"{min(differing)} of {piece.tensor} is among the arrays or in the small rest only")
            for name in names_received:
                if self._elements[piece.tensor, name] != piece.elements:
                    raise ValueError(f"{self._elements[piece.tensor, name]} of {piece.elements} elements of {name} of {piece.tensor} came")

    def _state(self, optimizer: torch.optim.Optimizer, saved: Mapping[str, Mapping[str, Any]]) -> dict[torch.Tensor, dict[str, Any]]:
        """Return the state of one optimizer. `saved`: its state in the copy, without the arrays. Raises ValueError."""
        own = {self._names.get(id(parameter)): (parameter, group) for group in optimizer.param_groups for parameter in group["params"]}
        states = {}
        for name, small in saved.items():
            arrays = self._new.get(name, {})
            if not (small or arrays):
                continue  # the parameter had no gradient yet
            if name not in own:
                raise ValueError(f"{name} is of no {type(optimizer).__name__} here")
            parameter, group = own[name]
            read = _Reader(parameter.device)
            state = {key: read(value) for key, value in small.items()}
            expected = self._expected(parameter)
            if expected is not None and (differing := {**state, **arrays}.keys() ^ expected.keys()):
                raise ValueError(f"{min(map(str, differing))} of {name} is in one of the two states only")
            if wrong := [key for key in state if expected is not None and not _is_alike(expected[key], state[key])]:
                raise ValueError(f"{wrong[0]} of {name} is not what {type(optimizer).__name__} keeps")
            states[parameter] = {key: _moved(value, (expected or {}).get(key), parameter, group) for key, value in state.items()} | arrays
        return states

    def _hand_over(self, objects: Sequence[Any]) -> Sequence[Any]:
        """Give each object its state of a copy, and return their former states. If one refuses, all get these back, and it raises
        StateError."""
        before = [copy.deepcopy(_state_of(item)) for item in self._handed_over]
        for number, (item, state) in enumerate(zip(self._handed_over, objects, strict=True), 1):
            try:
                _load(item, state)
            except Exception as error:
                self._give_back(before[:number])
                raise StateError(f"{type(item).__name__} does not take the donor's state: {type(error).__name__}: {error}") from error
        return before

    def _give_back(self, before: Sequence[Any]) -> None:
        for item, state in zip(self._handed_over, before, strict=False):
            _load(item, state)


class _Rest:
    """A `StagedRest`. Its tensors are copies, which are in host memory once the events have come."""

    def __init__(self, tree: Any, events: Sequence[torch.cuda.Event]) -> None:
        self._tree = tree
        self._events = events

    def wait(self) -> Any:
        for event in self._events:
            event.synchronize()
        return _leaves(self._tree)


class _Keeper:
    """Copies everything that may change with the next step. The host does not wait for copies from a CUDA device."""

    def __init__(self, events: list[torch.cuda.Event]) -> None:
        self._events = events

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, Mapping):
            return {key: self(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self(item) for item in value) if type(value) in (list, tuple) else value
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
        event.record(torch.cuda.current_stream(value.device))
        self._events.append(event)
        return _TENSOR, host, False


_TENSOR = "a tensor of this process"
"""Marks a tuple that `_Keeper` has made from a tensor."""


def _leaves(tree: Any) -> Any:
    """The tree with its tensors as `Leaf`s."""
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
    """Turns `Leaf`s into tensors: on the host if they were on the donor's host, else on a device of this process."""

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
        # Tried when the program begins. Else the first peer that needs the state would find out.
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
    """Whether the value travels in pieces. A step count does not, even for a parameter that is a scalar like it."""
    return isinstance(value, torch.Tensor) and value.ndim > 0 and value.shape == parameter.shape


def _moved(value: Any, own: Any, parameter: torch.Tensor, group: Mapping[str, Any]) -> Any:
    """Return a value of a parameter's small state where this optimizer keeps it: the donor's may choose another kernel, or its device be
    the host. `own`: what the optimizer will keep there; None if that is not known."""
    if not isinstance(value, torch.Tensor):
        return value
    if any(group.get(choice) for choice in ON_DEVICE):
        return value.to(parameter.device)
    return value.to(parameter.device if own.is_meta else own.device) if isinstance(own, torch.Tensor) else value


def _shared(optimizer: torch.optim.Optimizer, saved: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return what a copy has beside the states of parameters. Raises ValueError if this optimizer keeps something else there."""
    own = shared(optimizer)
    if wrong := [key for key, value in saved.items() if not _is_alike(own.get(key), value)]:
        raise ValueError(f"{wrong[0]} is not what {type(optimizer).__name__} keeps")
    return saved


def _options(optimizer: torch.optim.Optimizer, saved: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return a copy's options for an optimizer's groups, without those that choose a kernel. Raises ValueError if this optimizer cannot
    have them."""
    name = type(optimizer).__name__
    saved = [{key: value for key, value in options.items() if key not in CHOICES} for options in saved]
    if len(saved) != len(optimizer.param_groups):
        raise ValueError(f"the donor's {name} has {len(saved)} groups")
    for group, options in zip(optimizer.param_groups, saved, strict=True):
        for key, value in options.items():
            if key == "params" or not _is_alike(group.get(key), value):
                raise ValueError(f"{key} of {name} is {group.get(key)!r} here and {value!r} there")
    return saved


def _is_alike(own: Any, other: Any) -> bool:
    """Whether one value may replace the other. None may replace anything, and anything None."""
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
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise StateError(f"the donor keeps values as {name}, which this version of torch does not know")
    return dtype
