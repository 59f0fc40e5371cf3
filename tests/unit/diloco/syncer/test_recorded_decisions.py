"""What the syncer decided in jobs of random shape, with deaths at random moments, before its decisions came from another driver."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders.decisions import digest_of_a_job

pytestmark = pytest.mark.slow

RECORDED = json.loads(Path(__file__).with_name("recorded_decisions.json").read_text())
"""By seed and the way of the arithmetic."""


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_decisions_and_parameters_are_those_that_were_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    way, seed = name.split()
    digest, record = digest_of_a_job(tmp_path, int(seed), monkeypatch, in_threads=way == "threads")
    assert len(record.lines) > 300
    assert digest == RECORDED[name]
