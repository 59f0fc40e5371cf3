"""What the reference trainers share: flags, threads, logging, and the message outside of a job."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from diloco import contract
from diloco.schedules import Decay
from diloco.trainers.byte_lm import ModelConfig
from diloco.trainers.inner_optimizer import InnerConfig
from diloco.trainers.text import ByteCorpus
from diloco.wording import plural

EVALUATION_SECONDS = 3600.0
"""Seconds that the evaluation of the final parameters may take."""


@dataclass(frozen=True)
class TrainerOptions:
    model: ModelConfig
    inner: InnerConfig
    batch: int
    seed: int
    corpus: Path | None
    corpus_bytes: int
    held_out_bytes: int
    threads: int
    log_every: int
    alone_steps: int | None
    """Steps to train without a job; None to train as a learner of a job."""
    device: str

    def read_corpus(self) -> ByteCorpus:
        """Raises FileNotFoundError or ValueError for a folder with too little text."""
        return ByteCorpus.read(
            context=self.model.context, seed=self.seed, root=self.corpus, most=self.corpus_bytes, most_held_out=self.held_out_bytes
        )


def parse(program: str, argv: list[str], environment: Mapping[str, str] | None = None) -> TrainerOptions:
    """The options of `python -m <program> argv`. Exits with `contract.Exit.BAD_CONTRACT` if this is neither in a job nor `--alone`."""
    parser = _parser(program)
    given = parser.parse_args(argv)
    check_job(parser, program, given, os.environ if environment is None else environment)
    try:
        model = ModelConfig(layers=given.layers, width=given.width, heads=given.heads, context=given.context, tied=given.tied)
    except ValueError as error:
        parser.error(str(error))
    return TrainerOptions(
        model=model,
        inner=chosen_inner(given),
        batch=given.batch,
        seed=given.seed,
        corpus=given.corpus,
        corpus_bytes=given.corpus_bytes,
        held_out_bytes=given.held_out_bytes,
        threads=given.threads,
        log_every=given.log_every,
        alone_steps=given.steps,
        device=given.device,
    )


def check_job(parser: argparse.ArgumentParser, program: str, given: argparse.Namespace, environment: Mapping[str, str]) -> None:
    """Exit with `contract.Exit.BAD_CONTRACT` if this is neither in a job nor `--alone`, and with 2 for flags that contradict each other."""
    if given.alone != (given.steps is not None):
        parser.error("--alone and --steps go together: in a job, the job's training.steps decides")
    if given.steps is not None and given.steps < 1:
        parser.error(f"a training of {plural(given.steps, 'step')} trains nothing: --steps must be at least 1")
    if given.batch < 1:
        parser.error(f"--batch must be at least 1, got {given.batch}")
    if not given.alone:
        _require_job(program, environment)


def pin_threads(threads: int) -> None:
    """Let this process compute with `threads` threads; 0 leaves the choice to the frameworks. Call this before the first computation.

    Without it each of several learners on one machine would use every core, and they would slow each other down.
    """
    if threads < 1:
        return
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC"):  # NPROC sizes XLA's own pools
        os.environ[name] = str(threads)
    if threads == 1:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()


def start_logging() -> logging.Logger:
    """Return the trainers' log. It goes to standard error, as standard output is for the result."""
    package = logging.getLogger("diloco")
    if package.handlers:
        return package.getChild("trainers")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    return package.getChild("trainers")


def print_result(framework: str, local_steps: int, tokens: int, held_out_loss: float) -> None:
    """Print one line of JSON on standard output: what this process has trained, and the loss of the final parameters in nats per token."""
    line = {
        "framework": framework,
        "unit": os.environ.get(contract.ENV_UNIT, "alone"),
        "localSteps": local_steps,
        "tokens": tokens,
        "heldOutLoss": held_out_loss,
    }
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _require_job(program: str, environment: Mapping[str, str]) -> None:
    if not environment.get(contract.ENV_SYNCER_ADDRESS):
        sys.stderr.write(
            f"{program}: not in a job: {contract.ENV_SYNCER_ADDRESS} is not set. Learners are started by the operator: "
            "write a DiLoCoJob and run `diloco up job.yaml --fleet fleet.yaml`, or `kubectl apply` it. "
            f"To train without a job: `python -m {program} --alone --steps 600`.\n"
        )
        raise SystemExit(contract.Exit.BAD_CONTRACT)
    hosts = environment.get(contract.ENV_HOSTS, "1")
    if hosts != "1":
        sys.stderr.write(
            f"{program}: this unit has {hosts} hosts ({contract.ENV_HOSTS}), and this trainer computes on one. "
            "Give the pool hosts: 1 (GPUs) or a topology that one host holds (TPUs).\n"
        )
        raise SystemExit(contract.Exit.BAD_CONTRACT)


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description="Train a byte-level transformer on the Python standard library's source, as one learner of a DiLoCoJob.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_model_flags(parser)
    add = parser.add_argument
    add("--threads", type=int, default=1, help="compute threads; 0: the framework's own choice")
    add("--device", default="auto", help="torch device, such as cpu or cuda; auto: a GPU if there is one; JAX takes its default device")
    add_inner_flags(parser)
    add_run_flags(parser)
    return parser


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the byte-level model, its batches and its text."""
    model = ModelConfig()
    add = parser.add_argument
    add("--layers", type=int, default=model.layers, help="transformer blocks; the same for every learner of a job, as all of the model")
    add("--width", type=int, default=model.width)
    add("--heads", type=int, default=model.heads)
    add("--context", type=int, default=model.context, help="bytes per sample")
    add("--tied", action="store_true", help="the output head is the transposed embedding")
    add("--batch", type=int, default=8, help="samples per local step; may differ between learners, as the weights account for it")
    add("--seed", type=int, default=0, help="of the first parameters and the order of the data; the same for every learner of a job")
    add("--corpus", type=Path, default=None, help="folder with Python source to train on instead of the standard library")
    add("--corpus-bytes", type=int, default=8_000_000, help="at most so much text")
    add("--held-out-bytes", type=int, default=32_768, help="evaluate on at most so much text from files never trained on")


def add_inner_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the inner optimizer, which `chosen_inner` reads."""
    inner = InnerConfig()
    add = parser.add_argument_group("inner optimizer").add_argument
    add("--learning-rate", type=float, default=inner.learning_rate, help="highest rate of the inner AdamW")
    add("--warmup", type=int, default=inner.warmup, help="local steps of linear warm-up")
    add("--decay", choices=typing.get_args(Decay), default=inner.decay, help="how the rate falls; wsd: in the last fifth of the job")
    add("--decay-to", type=float, default=inner.final_share, help="share of the rate that is left at the end; 1: the rate stays")
    add("--weight-decay", type=float, default=inner.weight_decay)


def chosen_inner(given: argparse.Namespace) -> InnerConfig:
    return InnerConfig(
        learning_rate=given.learning_rate,
        warmup=given.warmup,
        decay=given.decay,
        final_share=given.decay_to,
        weight_decay=given.weight_decay,
    )


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the run, which `check_job` checks."""
    add = parser.add_argument_group("run").add_argument
    add("--log-every", type=int, default=50, help="local steps between two lines of the log")
    add("--alone", action="store_true", help="train as a plain program without a job, on the same data in the same order")
    add("--steps", type=int, default=None, help="local steps to train, only with --alone")
