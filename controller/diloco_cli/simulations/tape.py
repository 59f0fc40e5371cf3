"""`diloco tape generate` and `diloco tape train`: real training under a schedule that a generator has drawn.

See docs/decisions/0281-synthetic-tapes.md.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click
from diloco.simulation.synthetic_tape import MOST_UNITS, Fate, SyntheticTapeError, from_lines, generate, to_lines
from diloco.wording import plural
from diloco_operator.program.duration import Duration

from diloco_cli.cluster import CommandError
from diloco_cli.simulations.inputs import BadInput, only_job
from diloco_cli.simulations.output import seed_option

PROGRAM: Final = "diloco.trainers.tape_torch"
_FATE: Final = Fate()
_ROWS: Final = (
    ("outer steps", "outerSteps"),
    ("virtual time, seconds", "seconds"),
    ("merges", "merges"),
    ("skipped", "skipped"),
    ("units in a merge", "contributions"),
    ("staleness", "staleness"),
    ("failures", "failures"),
    ("merged tokens", "mergedTokens"),
    ("held-out loss", "heldOutLoss"),
    ("parameters", "sha256"),
)
"""What a row shows of the trainer's line."""


@click.command("generate", short_help="Draw what happens to the units of a training: speeds, slowdowns, failures.")
@click.option("--units", type=click.IntRange(1, MOST_UNITS), required=True, help="How many: unit-0, unit-1 …")
@click.option("--time", "seconds", type=Duration(), default="1h", show_default=True, help="Nothing more happens after that virtual time.")
@click.option("--step", type=Duration(), default="1s", show_default=True, help="Of a unit, in the mean.")
@click.option(
    "--spread", type=click.FloatRange(min=0.0, max=2.0), default=_FATE.spread, show_default=True,
    help="How unlike the units' constant speeds are: standard deviation of their logarithm.",
)  # fmt: skip
@click.option("--slow-every", type=Duration(), default=None, help="Mean time between two slowdowns of a unit.  [default: none is slow]")
@click.option(
    "--slow-factor", type=click.FloatRange(min=1.0, max=1000.0), default=2.0, show_default=True, help="By what steps are longer then."
)
@click.option("--slow-time", type=Duration(), default="30s", show_default=True, help="How long a slowdown takes, in the mean.")
@click.option("--fail-every", type=Duration(), default=None, help="Mean time from a unit's start to its failure.  [default: none fails]")
@click.option("--away", type=Duration(), default="60s", show_default=True, help="Until a unit begins again, in the mean.")
@seed_option
def generate_tape(
    units: int, seconds: float, step: float, spread: float, slow_every: float | None, slow_factor: float, slow_time: float,
    fail_every: float | None, away: float, seed: int,
) -> None:  # fmt: skip
    """Print a synthetic tape: for each unit the length of its steps, and when it is slow or fails, one JSON object a line. The same options
    give the same tape. You may edit it, or write one by hand: `diloco tape train` takes what it says.
    """
    fate = Fate(step, spread, slow_every or math.inf, slow_factor, slow_time, fail_every or math.inf, away)
    try:
        tape = generate(units, seconds, fate, seed)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    for line in to_lines(tape):
        click.echo(line)


@click.command(
    "train",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
    short_help="Train a small model under a synthetic tape, bit for bit the same each time.",
)
@click.argument("file", metavar="JOB.yaml")
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="TAPE")
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="Write the global parameters to this file, as safetensors.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Form of the output.")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[FLAG]...")
def train_tape(file: str, path: Path, save: Path | None, output: str, flags: tuple[str, ...]) -> None:
    """Train the byte-level model as spec.training of JOB.yaml says, with units that are as fast, slow and absent as TAPE says. All units
    train in this process and on virtual time, with the merges, quorum, grace and compression of a real job; between them and the syncer
    nothing takes time. The same job, tape and flags give the same bytes on the same machine.

    A FLAG is one of the model, its data or its optimizer: `python -m diloco.trainers.tape_torch --help` lists them. torch must be
    installed.
    """
    try:
        training = only_job([file]).spec.training
        from_lines(path.read_text().splitlines())
    except BadInput as error:
        raise CommandError("; ".join(error.sentences)) from error
    except SyntheticTapeError as error:
        raise CommandError(f"{path} is no synthetic tape: {error}") from error
    if find_spec("torch") is None:
        raise CommandError("this trains with torch, which is not installed beside diloco (its extra `torch`)")
    command = [sys.executable, "-m", PROGRAM, str(path), "--training", training.model_dump_json(by_alias=True), *flags]
    if save is not None:
        command += ["--save", str(save)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    if output == "json":
        click.echo(done.stdout, nl=False)
        return
    for line in _lines(json.loads(done.stdout)):
        click.echo(line)


def _lines(found: dict[str, Any]) -> list[str]:
    width = max(len(title) for title, _ in _ROWS)
    steps = ", ".join(f"{unit} {plural(count, 'step')}" for unit, count in found["localSteps"].items())
    return [*(f"{title:<{width}}  {found[key]}" for title, key in _ROWS), f"{'local':<{width}}  {steps}"]
