"""What a syncer needs, by hand, and on the page that has the numbers."""

from __future__ import annotations

import sizes_docs
from diloco.contract import Training
from diloco_operator.sizes import syncer_sizes

MIB = 1 << 20


def test_memory_holds_value_momentum_and_two_fragments_of_each_learner() -> None:
    sizes = syncer_sizes(24 * MIB, 4, Training(steps=1))  # 96 MiB in float32, fragments of 4 MiB
    assert sizes.memory == (2 * 96 + (4 * 2 + 12) * 4 + 80) * MIB, "12 fragments are under way, and the process itself has 80 MiB"
    int4 = syncer_sizes(24 * MIB, 4, Training(steps=1, compression="Int4"))
    assert int4.memory - sizes.memory == 96 * MIB, "what rounding left over"


def test_the_volume_holds_the_snapshots_and_the_merges_since_the_newest_one() -> None:
    training = Training.model_validate({"steps": 1, "checkpoint": {"keep": 2}})
    assert syncer_sizes(1 * MIB, 2, training).storage == (3 * 8 + 128) * MIB
    assert syncer_sizes(100 * MIB, 2, training).storage == (3 * 800 + 1600) * MIB


def test_bytes_fall_with_the_sync_interval_and_the_coding() -> None:
    bfloat16 = syncer_sizes(48 * MIB, 3, Training(steps=1)).bytes_per_step
    assert bfloat16 == 3 * 2 * 48 * MIB / 24
    assert syncer_sizes(48 * MIB, 3, Training(steps=1, sync_interval=48)).bytes_per_step == bfloat16 / 2
    int4 = syncer_sizes(48 * MIB, 3, Training(steps=1, compression="Int4")).bytes_per_step
    assert int4 / bfloat16 == (4 + 32 / 256) / 16, "4 bits a value, and a float32 for each 256"


def test_the_page_of_sizes_is_current() -> None:
    text = sizes_docs.PAGE.read_text()
    assert sizes_docs.page(text) == text, "run `make docs`"
