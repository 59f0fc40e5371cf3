"""The flags of the Llama trainers."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diloco.trainers import llama, options
from diloco.trainers.inner_optimizer import InnerConfig
from diloco.trainers.llama import LlamaConfig
from diloco.trainers.text import ByteCorpus
from diloco.trainers.tokens import TOKEN_TYPES, TokenSource, check_vocabulary
from diloco.trainers.windows import TokenWindows


@dataclass(frozen=True)
class LlamaOptions:
    model: LlamaConfig
    inner: InnerConfig
    batch: int
    micro_batch: int | None
    """Samples in memory at once; None for the whole batch."""
    dtype: str
    recompute: bool
    compile: bool
    seed: int
    data: TokenSource | None
    """None for the source of Python's standard library, byte by byte."""
    held_out: TokenSource | None
    """None for the last `held_out_tokens` of the data."""
    held_out_tokens: int
    threads: int
    log_every: int
    alone_steps: int | None
    """Steps to train without a job; None to train as a learner of a job."""
    device: str

    def read_corpus(self) -> TokenWindows[Any]:
        """Raises DataError, ValueError or OSError for data that cannot be used."""
        context = self.model.context
        if self.data is None:
            return ByteCorpus.read(context=context, seed=self.seed, most_held_out=self.held_out_tokens + 1)
        tokens = self.data.read()
        if self.held_out is None:
            most = self.held_out_tokens + 1
            train, rest = tokens[:-most], tokens[-most:]
        else:
            train, rest = tokens, self.held_out.read()[: self.held_out_tokens + 1]
        check_vocabulary(self.data.url, train, self.model.vocabulary)
        check_vocabulary((self.held_out or self.data).url, rest, self.model.vocabulary)
        return TokenWindows(train, rest, context=context, seed=self.seed)


def parse(program: str, argv: list[str], environment: Mapping[str, str] | None = None) -> LlamaOptions:
    """The options of `python -m <program> argv`. Exits with `contract.Exit.BAD_CONTRACT` if this is neither in a job nor `--alone`."""
    parser = _parser(program)
    given = parser.parse_args(argv)
    options.check_job(parser, program, given, os.environ if environment is None else environment)
    if given.tokenizer is not None and given.data is None:
        parser.error("--tokenizer is for --data")
    if given.micro_batch is not None and not 1 <= given.micro_batch <= given.batch:
        parser.error(f"--micro-batch must be from 1 to --batch {given.batch}, got {given.micro_batch}")
    try:
        model = llama.chosen_model(given)
    except (ValueError, OSError) as error:
        parser.error(str(error))

    def source(url: str | None) -> TokenSource | None:
        if url is None:
            return None
        if given.cache is None:
            return TokenSource(url, given.tokenizer, given.token_type, given.column)
        return TokenSource(url, given.tokenizer, given.token_type, given.column, given.cache)

    return LlamaOptions(
        model=model,
        inner=options.chosen_inner(given),
        batch=given.batch,
        micro_batch=given.micro_batch,
        dtype=given.dtype,
        recompute=given.recompute,
        compile=given.compile,
        seed=given.seed,
        data=source(given.data),
        held_out=source(given.held_out),
        held_out_tokens=given.held_out_tokens,
        threads=given.threads,
        log_every=given.log_every,
        alone_steps=given.steps,
        device=given.device,
    )


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description="Train a Llama-type decoder as one learner of a DiLoCoJob.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    llama.add_model_flags(parser)
    data = parser.add_argument_group("data", "the same for every learner of a job")
    data.add_argument("--data", default=None, help="path or URL of tokens (.bin, .npy, .parquet) or text; default: Python's own source")
    data.add_argument("--held-out", default=None, help="the same to evaluate on; default: the last --held-out-tokens of --data")
    data.add_argument("--held-out-tokens", type=int, default=32_768, help="evaluate on at most so many tokens")
    data.add_argument("--tokenizer", type=Path, default=None, help="tokenizer.json, for text")
    data.add_argument("--token-type", choices=list(TOKEN_TYPES), default="uint16", help="of raw .bin files, little-endian")
    data.add_argument("--column", default=None, help="of .parquet files; default: input_ids, tokens, text or content")
    data.add_argument("--cache", type=Path, default=None, help="folder for copied and tokenised data; default: ~/.cache/diloco/tokens")
    data.add_argument("--seed", type=int, default=0, help="of the first parameters and the order of the data")
    compute = parser.add_argument_group("compute", "may differ between learners")
    compute.add_argument("--batch", type=int, default=8, help="samples per local step; the weights account for it")
    compute.add_argument("--micro-batch", type=int, default=None, help="samples in memory at once; default: the whole batch")
    compute.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of products; parameters stay float32")
    compute.add_argument("--recompute", action="store_true", help="compute activations again in the backward pass, to save memory")
    compute.add_argument("--compile", action="store_true", help="torch.compile; JAX always compiles")
    compute.add_argument("--threads", type=int, default=1, help="compute threads; 0: the framework's own choice")
    compute.add_argument(
        "--device", default="auto", help="torch device, such as cpu or cuda; auto: a GPU if there is one; JAX takes all its local ones"
    )
    options.add_inner_flags(parser)
    options.add_run_flags(parser)
    return parser
