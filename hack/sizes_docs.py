"""Writes the tables of docs/sizes.md: hack/sizes_docs.py, or `make docs`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from diloco.contract import Training
from diloco_operator.sizes import syncer_sizes

PAGE = Path(__file__).resolve().parents[1] / "docs" / "sizes.md"
BEGIN, END = "<!-- sizes, written by hack/sizes_docs.py -->\n", "<!-- end of sizes -->\n"
GIB = 1 << 30
PARAMETERS = {"0.1 B": 10**8, "1 B": 10**9, "7 B": 7 * 10**9, "12 B": 12 * 10**9, "70 B": 70 * 10**9}
LEARNERS = (2, 4, 8, 16)
SETTINGS = (("BFloat16", 24), ("BFloat16", 96), ("Int4", 24), ("Int4", 96))


def tables() -> str:
    return "\n".join((*_machine(), "", *_network()))


def _machine() -> Iterator[str]:
    yield f"| parameters | {' | '.join(f'{each} learners' for each in LEARNERS)} | volume | core seconds of a learner's step |"
    yield "|---|" + "---|" * len(LEARNERS) + "---|---|"
    for name, parameters in PARAMETERS.items():
        sizes = [syncer_sizes(parameters, learners, Training(steps=1)) for learners in LEARNERS]
        memory = " | ".join(f"{each.memory / GIB:.4g}" for each in sizes)
        yield f"| {name} | {memory} | {sizes[0].storage / GIB:.4g} | {sizes[0].core_seconds_per_step / LEARNERS[0]:.2g} |"


def _network() -> Iterator[str]:
    head = " | ".join(f"{coding}, H = {interval}" for coding, interval in SETTINGS)
    yield f"| parameters | {head} |"
    yield "|---|" + "---|" * len(SETTINGS)
    for name, parameters in PARAMETERS.items():
        rates = (
            8 * syncer_sizes(parameters, 1, Training(steps=1, compression=coding, sync_interval=interval)).bytes_per_step / 1e9
            for coding, interval in SETTINGS
        )
        yield f"| {name} | " + " | ".join(f"{rate:.2g}" for rate in rates) + " |"


def page(text: str) -> str:
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{tables()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
