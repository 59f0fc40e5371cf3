"""`diloco export`: the model of a job as one safetensors file, from its snapshots on this machine or behind a URI.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click
from diloco.export.model_file import DTYPES, DType, open_model
from diloco.export.places import ExportError
from diloco.export.stream import Announcement, announcement
from diloco.export.target_file import DEFAULT_NAME, TargetFile
from diloco.wording import plural

from diloco_cli.cluster import EXIT_INTERRUPTED, CommandError

_EXIT_TERMINATED = 143


def export_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every export: -o, --step, --snapshot and --dtype."""
    command = click.option(
        "--dtype", type=click.Choice(DTYPES), default="float32", show_default=True,
        help="Type of the parameters in the file. The syncer keeps float32; the others are rounded from it.",
    )(command)  # fmt: skip
    command = click.option(
        "--snapshot", metavar="NAME", default="", help="Name of the snapshot, as `snapshots` lists it. Default: the newest."
    )(command)
    command = click.option(
        "--step", type=click.IntRange(min=0), metavar="N", help="Outer step of the snapshot. Default: the newest snapshot."
    )(command)
    return click.option(
        "-o", "--output", type=click.Path(path_type=Path), default=Path(DEFAULT_NAME), show_default=True, metavar="FILE",
        help="The file to write; a regular file that exists is replaced. In a folder it is model.safetensors.",
    )(command)  # fmt: skip


@click.command(short_help="Write the model of a job as one safetensors file.")
@click.argument("source")
@click.option("--job", metavar="NAME", default="", help="Name of the job, if SOURCE has snapshots of several.")
@export_options
def export(source: str, job: str, output: Path, step: int | None, snapshot: str, dtype: DType) -> None:
    """Write the parameters in the newest snapshot of SOURCE as one safetensors file, for torch, transformers and JAX.

    SOURCE is the state directory of `diloco up` (.diloco), a folder with snapshots, one snapshot, or a URI: file://, s3://, gs:// and
    what else fsspec has a driver for, as in spec.training.checkpoint.uri. Snapshots are read and checked, never changed. For a job in a
    cluster: kubectl diloco export JOB.
    """
    one_choice(step, snapshot)
    with errors_of_export():
        export_from(source, job, output, step, snapshot, dtype)


def one_choice(step: int | None, snapshot: str) -> None:
    """Raise UsageError if a snapshot is chosen in two ways."""
    if step is not None and snapshot:
        raise click.UsageError("give --step or --snapshot, not both")


def export_from(source: str, job: str, output: Path, step: int | None, snapshot: str, dtype: DType) -> None:
    """Write the file and print its summary. Raises ExportError."""
    click.echo(summary(*write_model(source, job, output, step, snapshot, dtype), dtype))


def write_model(source: str, job: str, output: Path, step: int | None, snapshot: str, dtype: DType) -> tuple[TargetFile, Announcement]:
    """Write the file, and return it with what it holds. Raises ExportError."""
    written = TargetFile(output)
    with open_model(source, job=job, step=step, name=snapshot, dtype=dtype) as model:
        about = announcement(model)
        click.echo(f"reading {about.snapshot}", err=True)
        with written as target, progress_of(about) as advance:
            for piece in model.pieces():
                target.write(piece)
                advance(len(piece))
            target.commit()
    return target, about


def summary(target: TargetFile, about: Announcement, dtype: DType) -> str:
    """Two lines about a file that has been written."""
    tensors = plural(about.tensors, "tensor")
    remark = f"\nnote: {about.remark}" if about.remark else ""
    return (
        f"{target.path}: {about.parameters:,} parameters in {tensors}, {dtype}, {target.bytes:,} bytes\n"
        f"outer step {about.step} of job {about.job}, sha256 {target.sha256}{remark}"
    )


@contextlib.contextmanager
def progress_of(about: Announcement) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr, if that is a terminal. Yields a function that advances it by some bytes."""
    with click.progressbar(length=about.bytes, label="exporting", show_eta=False, file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        update: Callable[[int], None] = bar.update
        yield update


@contextlib.contextmanager
def errors_of_export() -> Iterator[None]:
    """Turn errors into messages. SIGTERM becomes an exception, so that an unfinished file and a pod are removed."""

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(_EXIT_TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except ExportError as error:
        raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)
