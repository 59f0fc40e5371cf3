"""Which device a torch trainer takes."""

from __future__ import annotations

import pytest
import torch
from diloco.trainers.ranks_torch import choose_device


def with_gpus(patched: pytest.MonkeyPatch, count: int, local_rank: str = "") -> None:
    patched.setattr(torch.cuda, "is_available", lambda: count > 0)
    patched.setattr(torch.cuda, "device_count", lambda: count)
    if local_rank:
        patched.setenv("LOCAL_RANK", local_rank)
    else:
        patched.delenv("LOCAL_RANK", raising=False)


def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 0)
    assert choose_device("auto") == torch.device("cpu")


def test_auto_is_the_gpu_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 8, local_rank="5")
    assert choose_device("auto") == torch.device("cuda", 5)


def test_auto_is_the_only_gpu_that_each_rank_sees_where_a_launcher_hides_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 1, local_rank="5")
    assert choose_device("auto") == torch.device("cuda", 0)


def test_a_named_device_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 8)
    assert choose_device("cpu") == torch.device("cpu")
