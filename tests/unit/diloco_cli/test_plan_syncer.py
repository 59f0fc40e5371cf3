"""`diloco plan --syncer`: what the syncer of a job file needs, beside what it asks for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from builders.jobs import a_job
from click.testing import CliRunner
from diloco_cli.diloco.main import main

REPOSITORY = Path(__file__).resolve().parents[3]


def plan(*arguments: str, status: int) -> str:
    done = CliRunner().invoke(main, ["plan", *arguments])
    assert done.exit_code == status, done.output
    return done.output


def a_file(folder: Path, job: dict[str, object]) -> str:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return str(path)


def test_a_syncer_that_asks_for_too_little_is_named_with_what_to_set(tmp_path: Path) -> None:
    file = a_file(tmp_path, a_job("big").with_pool(max=4).build())
    shown = plan("--syncer", "1.1B", file, status=1)
    assert "big: 1,100,000,000 parameters, BFloat16, syncInterval" in shown
    assert "It asks for 1.00 GiB of memory, and needs" in shown
    assert "set resources of the container syncer in spec.syncer.template" in shown
    assert "Its volume has" in shown
    assert "set spec.syncer.storage.size" in shown
    [read] = json.loads(plan("--syncer", "1.1B", "-o", "json", file, status=1))
    assert (read["name"], read["parameters"], len(read["lacking"])) == ("big", 1_100_000_000, 2)


def test_the_example_of_a_large_model_asks_for_what_it_needs() -> None:
    plan("--syncer", "1.1B", str(REPOSITORY / "examples" / "llama.yaml"), status=0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--syncer", "7B"), "give a FILE with jobs"), (("--syncer", "many", "x.yaml"), "write it as 350M or 7B")],
    ids=["no file", "no number"],
)
def test_bad_input_is_refused(arguments: tuple[str, ...], words: str) -> None:
    assert words in plan(*arguments, status=2)
