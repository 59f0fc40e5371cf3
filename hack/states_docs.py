"""Writes docs/states.md, the life of a unit, from its table: `python hack/states_docs.py > docs/states.md`.

See docs/decisions/0231-states-reasons-words.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from diloco_operator.reconcile.units.states import ATTEMPT, ENDED_IN_FAILURE, IDLE, LIVES, OVER, PENDING, State
from diloco_operator.reconcile.units.transitions import UnitEvent
from markdown_text import paragraph, table

INTRODUCTION = """\
Generated from `controller/diloco_operator/reconcile/units/states.py` by `hack/states_docs.py`: change the table and run `make docs`.

A unit is in one of these states, and only the events below change it. Status shows a state in two fields: `status.units[].state` and
`reason`. The first row that fits is the state of the unit. *Time* is the class of [goodput](guide/laptop.md#where-the-time-went) that its
time counts for; of a unit that has trained before, start and compilation count as recovery.
"""
EVENTS = """\
One function, `transition`, puts an event on the record of a unit, and refuses what is no row of this table.
"""
GROUPS: Mapping[str, frozenset[State]] = {
    "with an attempt": ATTEMPT,
    "idle": IDLE,
    "pending": PENDING,
    "given up": ENDED_IN_FAILURE,
    "given up or ended": OVER,
    "with an attempt or draining": LIVES,
}
"""Name -> the states that the table of events calls by this one name."""


def page() -> str:
    """The whole page, as Markdown."""
    parts = ["# States of a unit", *map(paragraph, INTRODUCTION.split("\n\n")), _diagram(), "## States", _states(), *_groups()]
    parts += ["## Events", paragraph(EVENTS), _events()]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def name_of(state: State) -> str:
    """The state as documents write it: `Waiting for slice`."""
    return state.name.replace("_", " ").capitalize()


def _shown(state: State) -> str:
    """The node of the diagram that stands for a state."""
    return "Attempt" if state in ATTEMPT else state.row.shown[0].value


def _diagram() -> str:
    edges: dict[tuple[str, str], list[str]] = {}
    for event in UnitEvent:
        row = event.row
        ways = {(_shown(before), _shown(after)) for before in row.before for after in row.after}
        for way in sorted(way for way in ways if way[0] != way[1] and not row.stays):
            edges.setdefault(way, []).append(event.name)
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> Pending", "    state Attempt {"]
    lines += [f"        {shown.value}" for shown in State.WAITING_FOR_GRANTOR.row.shown]
    lines += ["    }", *(f"    {a} --> {b}: {', '.join(names)}" for (a, b), names in edges.items()), "```"]
    return "\n".join(lines)


def _states() -> str:
    rows = []
    for state in State:
        row = state.row
        slice_ = {None: "", True: "yes", False: "no"}[row.placed]
        shown = ", ".join(f"`{each}`" for each in row.shown)
        reasons = ", ".join(f"`{each}`" for each in row.reasons) or "any other"
        use = row.phase.use
        rows.append([name_of(state), shown, reasons, slice_, use.value if use is not None else "", row.meaning])
    return table(["state", "`state`", "`reason`", "slice", "time", "meaning"], rows)


def _groups() -> Iterator[str]:
    text = "Events name some of them together. " + " ".join(
        f"*{name.capitalize()}*: {', '.join(name_of(each).lower() for each in State if each in states)}." for name, states in GROUPS.items()
    )
    yield paragraph(text)


def _named(states: Iterable[State]) -> str:
    left, names = set(states), []
    for name, group in sorted(GROUPS.items(), key=lambda each: -len(each[1])):
        if group <= left:
            names.append(f"*{name}*")
            left -= group
    return ", ".join([*names, *(name_of(state).lower() for state in State if state in left)])


def _events() -> str:
    rows = []
    for event in UnitEvent:
        row = event.row
        rows.append([f"`{event.name}`", _named(row.before), _named(row.after), row.meaning])
    return table(["event", "from", "to", "what happens"], rows)


if __name__ == "__main__":
    print(page(), end="")
