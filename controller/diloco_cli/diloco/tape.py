"""`diloco tape`: what happened to a job, as its syncer wrote it down.

See docs/decisions/0247-commit-records.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from diloco.tape.places import heads_in
from diloco.tape.records import TapeError
from pydantic import BaseModel, ValidationError

from diloco_cli.cluster import CommandError
from diloco_cli.status_text import table

HEADER = ("TIME", "EVENT", "STEP", "FRAGMENT", "UNIT", "DETAILS")


@click.group(short_help="Show what happened to a job, as its syncer wrote it down.")
def tape() -> None:
    """Read the tape of a job: one record for each merge, adoption, lease and session, on the volume of its syncer."""


@tape.command(short_help="Print the records of a tape.")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Form of the output.")
@click.option("--merges", is_flag=True, help="Only merges, and outer steps without one.")
def show(path: Path, output: str, *, merges: bool) -> None:
    """Print the records of the tape in PATH, oldest first. PATH is the state directory of `diloco up`, the folder of a syncer's volume, its
    tape, or one file of it. With -o json each record is one line, as it was written.

    A row of a merge has, for each unit in it, its share of the weights, its local step, and the last outer step that it knew of.
    """
    try:
        wanted = [head for head in heads_in(path) if not merges or head["type"] in ("merge", "skip")]
    except TapeError as error:
        raise CommandError(str(error)) from error
    if output == "json":
        for head in wanted:
            click.echo(json.dumps(head))
        return
    for line in table(HEADER, (_row(head) for head in wanted)):
        click.echo(line)


def _row(head: Mapping[str, Any]) -> Sequence[str]:
    at = datetime.fromtimestamp(head["at"], UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    step, fragment = (str(head[key]) if key in head else "" for key in ("t", "fragment"))
    unit = head.get("unit") or str(head.get("holder", "")).partition("/")[0]
    return at, head["type"], step, fragment, str(unit), _details(head)


def _details(head: Mapping[str, Any]) -> str:
    """What the record says beyond the other columns. It may be damaged: lines of the history have no checksum, and that of a merge cannot
    be checked without its values, which are not read here."""
    form = _FORMS.get(head["type"])
    try:
        return "; ".join(form.model_validate(head).words()) if form is not None else ""
    except ValidationError as error:
        [first, *_] = error.errors()
        return f"damaged: {'.'.join(map(str, first['loc']))}: {first['msg']}"


class _Segment(BaseModel):
    segment: int
    incarnation: str

    def words(self) -> Iterator[str]:
        yield f"segment {self.segment} of state {self.incarnation[:8]}"


class _Join(BaseModel):
    attempt: int
    holder: str

    def words(self) -> Iterator[str]:
        yield f"attempt {self.attempt} as {self.holder}"


class _Lease(BaseModel):
    start: int
    end: int

    def words(self) -> Iterator[str]:
        yield f"samples {self.start} to {self.end - 1}"


class _Leave(BaseModel):
    holder: str
    keep: Any

    def words(self) -> Iterator[str]:
        yield self.holder if self.keep is None else f"{self.holder}, with work under way"


class _Adopt(BaseModel):
    version: int
    step: int

    def words(self) -> Iterator[str]:
        yield f"version {self.version} after local step {self.step}"


class _Refuse(BaseModel):
    reason: str
    message: str

    def words(self) -> Iterator[str]:
        yield f"{self.reason}: {self.message}"


class _Skip(BaseModel):
    message: str

    def words(self) -> Iterator[str]:
        yield self.message


class _Marks(BaseModel):
    steps: int
    seen: int


class _Given(BaseModel):
    weight: float
    tokens: int
    steps: int
    marks: _Marks


class _Merge(BaseModel):
    given: dict[str, _Given]
    refused: dict[str, str]
    missed: list[str]
    cosine: float | None
    seconds: float
    base: int
    checksum: str

    def words(self) -> Iterator[str]:
        total = sum(given.weight for given in self.given.values())
        for unit, given in self.given.items():
            share = given.weight / total if total else 0.0
            yield f"{unit} {share:.1%} ({given.tokens} tokens in {given.steps} steps, at {given.marks.steps}|{given.marks.seen})"
        for unit, reason in self.refused.items():
            yield f"{unit} refused: {reason}"
        if self.missed:
            yield f"without {', '.join(self.missed)}"
        if self.cosine is not None:
            yield f"cosine {self.cosine:.3f}"
        yield f"waited {self.seconds:.2f} s"
        yield f"from version {self.base}, {self.checksum}"


_FORMS: Mapping[str, type[_Segment | _Join | _Lease | _Leave | _Adopt | _Refuse | _Skip | _Merge]] = {
    "segment": _Segment,
    "join": _Join,
    "lease": _Lease,
    "leave": _Leave,
    "adopt": _Adopt,
    "refuse": _Refuse,
    "skip": _Skip,
    "merge": _Merge,
}
