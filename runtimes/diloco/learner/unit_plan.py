"""What a unit does between two steps: a pure function of its counters and of what the connection has received.

The plan is data without arrays, so that the leader can decide for all ranks.

See docs/decisions/0151-step-boundary.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from diloco.learner.inbox import Finished, InboxEvent, Leased, PullWanted, Received, RefusedForGood, RestWanted, Welcomed
from diloco.learner.timetable import Pace, Timetable

_MOST_AT_ONCE = 16 << 20
"""Elements that the boundary of a short step moves at most, unless one fragment is larger. A processor copies these 64 MiB in 10 ms."""
_SHORT_STEP = 0.5
"""Seconds. The boundary of a longer step moves more in proportion, so that the copies take 2 % of its time."""


def most_at_once(step_seconds: float) -> int:
    """Return how many elements the boundary after a step of `step_seconds` moves at most."""
    return int(_MOST_AT_ONCE * max(1.0, step_seconds / _SHORT_STEP))


@dataclass(frozen=True, slots=True)
class Read:
    """Stage a fragment for the exchange of outer step `t`."""

    fragment: int
    t: int
    steps: int
    """Local steps since the fragment was adopted."""
    tokens: int
    """Tokens of these steps."""


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """Stage a fragment for a pull that has not come yet. Once it came, it would wait too long for the next boundary."""

    read: Read
    version: int
    """The version of the fragment from which these steps went on. Against another version the values are never sent."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """Overwrite a fragment with its version `version`."""

    fragment: int
    version: int
    tokens: int = 0
    """The whole job's committed tokens when the version was made."""


type Moves = tuple[PullWanted | Adoption, ...]


@dataclass(frozen=True, slots=True)
class WorkChange:
    """A change of the samples that the unit may train."""

    restart: bool = False
    """Forget all leases from before."""
    asked: int | None = None
    """Samples that count as asked for from now on, before `leases` are subtracted. None for no change."""
    leases: tuple[tuple[int, int], ...] = ()
    """New ranges [start, end) of sequence numbers."""
    quorum: int = 0
    """If not 0, no samples may be taken, because the outer clock waits for this many learners."""


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """What happens at one step boundary, in the order of the fields."""

    step: int
    """Local steps that the process has taken."""
    work: WorkChange = WorkChange()
    reads: tuple[Read, ...] = ()
    adoptions: tuple[Adoption, ...] = ()
    ahead: tuple[ReadAhead, ...] | None = ()
    """What to stage for pulls to come, in place of everything staged ahead before. None: keep that."""
    seed: bool = False
    """Send the job's first parameters."""
    finish: bool = False
    """The job is over: take the final parameters."""
    repeat_progress: bool = False
    """Report the unit's progress again: it rests, and the syncer shall know that it is alive."""
    refused: RefusedForGood | None = None
    """Why the unit must leave. None if it need not."""


@dataclass(frozen=True, slots=True)
class UnitState:
    """A unit's counters, and what waits for a later boundary."""

    fragment_steps: tuple[int, ...]
    """Local steps since each fragment was adopted."""
    fragment_tokens: tuple[int, ...]
    versions: tuple[int, ...]
    """Version of each fragment that the model adopted last. -1 if it has adopted none."""
    missing: frozenset[int]
    """Fragments that the model has not received from the job yet."""
    generation: int = 0
    """0 if the syncer has not accepted this unit yet."""
    step: int = 0
    """Local steps of the process."""
    t: int = 0
    """Last known outer step."""
    steps: int = 0
    """Outer steps of the job."""
    samples_done: int = 0
    tokens_done: int = 0
    steps_done: int = 0
    """What this generation has trained: samples of its leases, tokens, local steps."""
    in_hand: tuple[tuple[int, int], ...] = ()
    """(generation, samples) of the batches that the program has taken and no step has settled, the oldest first."""
    feeds_itself: bool = False
    """The program's last step used no batch of the leases."""
    waiting: Moves = ()
    """In the order in which they came, at most one of each kind for a fragment."""
    pace: Pace = field(default_factory=Pace)
    planned: int = 0
    """Local steps of the process at the last boundary."""
    quorum: int = 0
    """If not 0, the unit rests, because the outer clock waits for this many learners."""
    seed_wanted: bool = False
    """The syncer waits for the job's first parameters from this unit."""
    done: bool = False
    """The job is over."""

    def take_batch(self, samples: int) -> UnitState:
        """Note that the program has taken one more batch of this generation's leases. It may fetch batches ahead of its steps."""
        return replace(self, in_hand=(*self.in_hand, (self.generation, samples)))

    def count(self, tokens: int, batches: int | None = 1) -> UnitState:
        """Count a local step, which settles the oldest `batches` batches. None: the program feeds itself. Batches of an older generation
        count as no samples, because its leases are over."""
        settled = self.in_hand[: batches or 0]
        return replace(
            self,
            fragment_steps=tuple([steps + 1 for steps in self.fragment_steps]),
            fragment_tokens=tuple([before + tokens for before in self.fragment_tokens]),
            step=self.step + 1,
            samples_done=self.samples_done + sum(samples for generation, samples in settled if generation == self.generation),
            tokens_done=self.tokens_done + tokens,
            steps_done=self.steps_done + 1,
            in_hand=self.in_hand[batches or 0 :],
            feeds_itself=batches is None,
        )


def new_unit(fragments: int, steps: int) -> UnitState:
    """Return the state of a unit that the syncer has not accepted yet. `fragments`: of the model. `steps`: outer steps of the job."""
    nothing = (0,) * fragments
    return UnitState(nothing, nothing, versions=(-1,) * fragments, missing=frozenset(range(fragments)), steps=steps)


def plan_boundary(
    state: UnitState, events: Sequence[InboxEvent], table: Timetable, most: int, *, reads_ahead: bool = True, readable: bool = True
) -> tuple[UnitPlan, UnitState]:
    """Return the plan for this boundary, and the state once it is carried out.

    A boundary moves fragments in order of arrival, and then reads ahead. It always moves one fragment, and all that have come while the
    model lacks some. Otherwise it moves at most `most` elements, and the rest waits for the next boundary.

    Args:
        events: what came since the last boundary, in order
        most: elements to move at most
        reads_ahead: whether to stage fragments for pulls that have not come yet
        readable: the model is that after the last counted step. If it is not, reads and a seed wait
    """
    work, finish, refused = WorkChange(), False, None
    # What every boundary changes is put into the state once, at the end: a copy of the state takes as long as all the rest.
    t, waiting, heard = state.t, state.waiting, state.pace.t
    for event in events:
        match event:
            case Received():
                waiting = _with_version(waiting, event)
                t, heard = max(t, event.t), max(heard, event.t)
            case PullWanted() if event.generation == state.generation:
                # A newer exchange of the fragment means that the older one is over.
                others = tuple(move for move in waiting if not _is_pull(move, event.fragment))
                waiting = others if event.answered else (*others, event)
                heard = max(heard, event.t)
            case Leased():
                work = replace(work, leases=(*work.leases, (event.start, event.end)))
            case Welcomed():
                resumed = event.generation == state.generation
                # A request on the stream before may be lost. The syncer sends again what it has leased in this generation.
                work = replace(work, asked=0) if resumed else WorkChange(restart=True, asked=event.asked)
                state = _welcomed(state, event)
                if resumed:
                    heard = max(heard, event.t)
                else:
                    waiting = tuple(move for move in waiting if isinstance(move, Adoption))
                    t = heard = event.t
            case RestWanted():
                state = replace(state, quorum=event.quorum)
            case Finished():
                state = replace(state, done=True, seed_wanted=False)
                t, waiting, finish = event.t, (), True
            case RefusedForGood():
                refused = event
    seed = state.seed_wanted and readable
    if seed or finish:
        state = replace(state, missing=frozenset(), seed_wanted=False)
    reads, adoptions, waiting = _moves(state, waiting, table.sizes, most, readable=readable)
    in_step = state.step == state.planned
    state = _after_boundary(state, t, waiting, heard, adoptions, seed=seed)
    moved = sum(table.sizes[move.fragment] for move in reads) + sum(table.sizes[move.fragment] for move in adoptions)
    ahead = None if in_step or not reads_ahead else _ahead(state, table, most, moved)
    repeat = bool(state.quorum) and in_step and not state.done
    if state.quorum:
        work = replace(work, quorum=state.quorum)
    return UnitPlan(state.step, work, reads, adoptions, ahead, seed, finish, repeat, refused), state


def _with_version(waiting: Moves, event: Received) -> Moves:
    """Let the new version replace a waiting one of its fragment. Pulls of its exchange and of older ones are dropped: they are over."""
    adoption = Adoption(event.fragment, event.t, event.tokens)
    moves = [move for move in waiting if not (_is_pull(move, event.fragment) and isinstance(move, PullWanted) and move.t <= event.t)]
    place = next((i for i, move in enumerate(moves) if isinstance(move, Adoption) and move.fragment == event.fragment), len(moves))
    moves[place : place + 1] = [adoption]
    return tuple(moves)


def _welcomed(state: UnitState, event: Welcomed) -> UnitState:
    if event.generation == state.generation:
        return replace(state, steps=event.steps, quorum=0, seed_wanted=event.seed_wanted)
    nothing = (0,) * len(state.fragment_steps)
    return replace(
        state,
        generation=event.generation,
        steps=event.steps,
        samples_done=0,
        tokens_done=0,
        steps_done=0,
        fragment_steps=nothing,
        fragment_tokens=nothing,
        quorum=0,
        seed_wanted=event.seed_wanted,
        pace=state.pace.restart(state.step, event.t),
    )


def _moves(
    state: UnitState, moves: Moves, sizes: Sequence[int], most: int, *, readable: bool
) -> tuple[tuple[Read, ...], tuple[Adoption, ...], Moves]:
    """Return (reads, adoptions, what still waits). `moves`: what waits before."""
    reads: list[Read] = []
    adoptions: list[Adoption] = []
    waiting: list[PullWanted | Adoption] = []
    moved = 0
    full = False
    for move in moves:
        fragment = move.fragment
        just_adopted = not state.fragment_steps[fragment] or any(x.fragment == fragment for x in adoptions)
        if isinstance(move, PullWanted) and (just_adopted or not readable):
            waiting.append(move)  # after an adoption there is nothing to send before the next step
            continue
        # Once one does not fit, all later ones wait, too, so that they keep their order.
        full = full or bool(moved and not state.missing and moved + sizes[fragment] > most)
        if full:
            waiting.append(move)
            continue
        moved += sizes[fragment]
        if isinstance(move, Adoption):
            adoptions.append(move)
        else:
            reads.append(Read(fragment, move.t, state.fragment_steps[fragment], state.fragment_tokens[fragment]))
    return tuple(reads), tuple(adoptions), tuple(waiting)


def _ahead(state: UnitState, table: Timetable, most: int, moved: int) -> tuple[ReadAhead, ...]:
    """Return the fragments whose next pull would wait too long for an answer, the nearest first, as far as they fit.

    `moved`: elements that this boundary moves already.
    """
    if state.done or state.missing:
        return ()
    ahead: list[ReadAhead] = []
    kept = 0
    for fragment, t in state.pace.late(table, state.step).items():
        busy = any(move.fragment == fragment for move in state.waiting)
        size = table.sizes[fragment]
        fits = (not kept or kept + size <= table.most_ahead) and (not moved or moved + size <= most)
        if t > state.steps or busy or not state.fragment_steps[fragment] or not fits:
            continue
        kept, moved = kept + size, moved + size
        read = Read(fragment, t, state.fragment_steps[fragment], state.fragment_tokens[fragment])
        ahead.append(ReadAhead(read, state.versions[fragment]))
    return tuple(ahead)


def _after_boundary(state: UnitState, t: int, waiting: Moves, heard: int, adoptions: Collection[Adoption], *, seed: bool) -> UnitState:
    """Return the state after this boundary. `heard`: the newest outer step that the unit has heard of."""
    steps, tokens, versions = list(state.fragment_steps), list(state.fragment_tokens), list(state.versions)
    for adoption in adoptions:
        steps[adoption.fragment] = tokens[adoption.fragment] = 0
        versions[adoption.fragment] = adoption.version
    if seed:  # after the adoptions: the unit sends what it has adopted last, and that becomes version 0
        versions = [0] * len(versions)
    return replace(
        state,
        t=t,
        fragment_steps=tuple(steps),
        fragment_tokens=tuple(tokens),
        versions=tuple(versions),
        missing=state.missing.difference(adoption.fragment for adoption in adoptions),
        waiting=waiting,
        pace=state.pace.heard(state.step, heard),
        planned=state.step,
    )


def _is_pull(move: PullWanted | Adoption, fragment: int) -> bool:
    return isinstance(move, PullWanted) and move.fragment == fragment
