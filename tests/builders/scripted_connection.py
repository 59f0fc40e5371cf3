"""A session without a network: the test says what comes from the syncer, and sees what the session says to it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from builders.exchange import job_file, training
from builders.training_loop import TrainingLoop
from diloco.algorithm.fragments import make_fragments, pack
from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import portion
from diloco.learner.ahead import StagedAhead
from diloco.learner.arrays import ArrayStore
from diloco.learner.connection import Connection
from diloco.learner.exchanged_model import ExchangedModel
from diloco.learner.heartbeat_state import HeartbeatState
from diloco.learner.inbox import Inbox, InboxEvent, Leased, Received, Welcomed
from diloco.learner.member import MemberParts
from diloco.learner.peers import Peers
from diloco.learner.solo import SoloMember
from diloco.learner.store import Float32Array, ParameterStore, Staged
from diloco.protocol.diloco_pb2 import Alive, Bye, Chunk, Evaluation, FromLearner, Progress
from diloco.session.session import AdapterHooks, Session, SessionParts, Updates
from diloco.session.step_timer import StepTimer


@dataclass
class ScriptedConnection(Connection):
    """One that keeps what it is given. A push is as far as the values that were staged."""

    values: dict[int, Float32Array] = field(default_factory=dict)
    """What the last `Received` of each fragment brought."""
    reported: list[tuple[int, Progress]] = field(default_factory=list)
    pushed: list[tuple[int, Chunk, Staged]] = field(default_factory=list)
    ahead: StagedAhead = field(default_factory=StagedAhead)
    seeded: list[tuple[int, list[Float32Array]]] = field(default_factory=list)
    wanted: list[tuple[int, int]] = field(default_factory=list)
    has_stream: bool = True
    initial_request: int = 0
    posted: list[FromLearner] = field(default_factory=list)
    closed: list[Bye | None] = field(default_factory=list)
    started: bool = False
    told: list[Alive] = field(default_factory=list)
    """What the heartbeat said at each change, all at one moment."""

    def __post_init__(self) -> None:
        self.heartbeat = HeartbeatState(lambda: self.told.append(self.heartbeat.message()), now=lambda: 0.0)

    @property
    def pauses(self) -> list[tuple[str, float]]:
        """(reason, seconds left) from the first pause on."""
        said = [(alive.pause, alive.pause_left) for alive in self.told]
        return list(itertools.dropwhile(lambda pause: pause == ("", 0.0), said))

    @property
    def finishes(self) -> list[str]:
        return [alive.finish for alive in self.told if alive.finish]

    @property
    def evaluations(self) -> list[Evaluation]:
        return [message.evaluation for message in self.posted]

    def start(self) -> None:
        self.started = True

    def progress(self, generation: int, progress: Progress) -> None:
        self.reported.append((generation, progress))

    def want(self, generation: int, samples: int) -> bool:
        if self.has_stream:
            self.wanted.append((generation, samples))
        return self.has_stream

    def set_initial_request(self, samples: int) -> None:
        self.initial_request = samples

    def push(self, generation: int, header: Chunk, staged: Staged) -> None:
        self.pushed.append((generation, header, staged))

    def keep_only(self, fragments: Collection[int]) -> None:
        self.ahead.keep_only(fragments)

    def keep(self, generation: int, header: Chunk, staged: Staged) -> None:
        self.ahead.keep(header, staged)

    def seed(self, generation: int, values: Sequence[Float32Array]) -> None:
        self.seeded.append((generation, list(values)))

    def received(self) -> list[Float32Array] | None:
        return [self.values[index] for index in sorted(self.values)] if len(self.values) == 2 else None

    def post(self, message: FromLearner) -> None:
        self.posted.append(message)

    def close(self, bye: Bye | None) -> None:
        self.closed.append(bye)


class ScriptedSession(TrainingLoop):
    """A session of a model of two fragments, each of one tensor, and its training loop, step by step."""

    def __init__(
        self,
        on_adopt: Callable[[Sequence[str]], None] | None = None,
        arrays: dict[str, Float32Array] | None = None,
        store: ParameterStore | None = None,
        updates: Updates = lambda: None,
        stepped: Callable[[], None] = lambda: None,
    ) -> None:
        """`store`: of a framework, whose program the test runs, and `updates` its optimizers'; default: of `arrays`. `stepped`: see
        `AdapterHooks`."""
        self.arrays = arrays if arrays is not None else {"a": np.zeros(3, np.float32), "b": np.zeros((1, 2), np.float32)}
        self.store = store or ArrayStore(self.arrays)
        job = job_file(training(1000))
        self.fragments = make_fragments(Layout(self.store.specs()), job.training.fragments)
        self.connection = ScriptedConnection()
        self.inbox = Inbox(job.training.overlap_steps)
        owned = self.store.owned()
        model = ExchangedModel(self.store, [portion(one, owned) for one in self.fragments], self.connection.received, on_adopt)
        self.member = SoloMember(MemberParts("u", job.training, model, self.inbox, self.connection, Peers()))
        self.parts = SessionParts("u", self.member, StepTimer(1.0), AdapterHooks(updates=updates, stepped=stepped))
        self._session = self.begin(Session(self.parts))

    @property
    def session(self) -> Session:
        return self._session

    def comes(self, *events: InboxEvent) -> None:
        """What the syncer sent, for the next boundary."""
        for event in events:
            self.inbox.put(event)

    def welcome(self, generation: int = 1, t: int = 4, *, seed_wanted: bool = False, asked: int = 0) -> Welcomed:
        return Welcomed(generation, t, 1000, seed_wanted, asked)

    def broadcast(self, fragment: int, t: int, value: float) -> Received:
        """Version `t` of a fragment, `value` everywhere."""
        return self.broadcast_of(fragment, t, np.full(self.fragments[fragment].size, value, np.float32))

    def broadcast_of(self, fragment: int, t: int, values: Float32Array) -> Received:
        """Version `t` of a fragment, float32 [its size]."""
        names = [tensor.name for tensor in self.fragments[fragment].tensors]
        self.connection.values[fragment] = values
        return Received(fragment, t, self.store.prepare(names, values))

    def join(self, value: float = 5.0) -> ScriptedSession:
        """Generation 1 at outer step 4, `value` everywhere, 100 samples leased."""
        self.comes(self.welcome(), self.broadcast(0, 4, value), self.broadcast(1, 4, value), Leased(0, 100))
        self.session._wait_for_parameters()
        return self

    def of(self, fragment: int) -> set[float]:
        """The different values of a fragment's parameters."""
        return set(pack(self.fragments[fragment], self.arrays).tolist())

    @property
    def progress(self) -> Progress:
        """The newest."""
        return self.connection.reported[-1][1]
