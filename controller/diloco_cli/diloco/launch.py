"""`diloco launch`: `diloco-launch` under the name that users of the CLI look for. Images of learners have the latter only."""

from __future__ import annotations

import click
from diloco.launch import main


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
    short_help="Start the ranks of one host, as a pod's environment says.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[--nproc-per-node N] [-m] PROGRAM [ARGS]...")
def launch(arguments: tuple[str, ...]) -> None:
    """Start the ranks of one host, as a pod's environment says: the command `diloco-launch` of learner images."""
    raise SystemExit(main(arguments))
