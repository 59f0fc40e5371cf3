"""The bundle of a learner outside the job's cluster, as a program reads it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from diloco import contract
from diloco.bundle import bundle_environment
from diloco.environment import ContractError
from diloco.launch import main
from diloco.learner.config import read_learner_config


def a_bundle(folder: Path) -> Path:
    job = {"name": "lm", "namespace": "team", "uid": "u", "training": {"steps": 10}}
    (folder / contract.JOB_FILE_KEY).write_text(json.dumps(job))
    bundle = contract.Bundle(unit="lab", attempt=1, syncer="203.0.113.7:7077")
    (folder / contract.BUNDLE_FILE).write_text(bundle.model_dump_json(by_alias=True))
    return folder


def test_a_bundle_stands_for_the_environment_of_a_pod(tmp_path: Path) -> None:
    config = read_learner_config(bundle_environment(a_bundle(tmp_path)))
    assert config.cluster == "outside/lab"
    assert (config.unit, config.attempt, config.syncer) == ("lab", 1, "203.0.113.7:7077")
    assert config.identity == "diloco://u/learner/lab/1"
    assert config.host_name == "lm-syncer.lm.team.svc", "the syncer is known by its own name, at whatever address"
    assert config.tls.folder == tmp_path


def test_a_folder_that_is_no_bundle_is_told_with_the_command_that_writes_one(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"cannot read .*bundle\.json: No such file or directory\. kubectl diloco join-bundle writes"):
        bundle_environment(tmp_path)
    (tmp_path / contract.BUNDLE_FILE).write_text("{}")
    with pytest.raises(ContractError, match=r"bundle\.json is no bundle"):
        bundle_environment(tmp_path)


def test_the_launcher_gives_it_to_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, str] = {}

    def takes_the_place(program: str, command: list[str], environment: dict[str, str]) -> None:
        given.update(environment)
        raise SystemExit(0)

    monkeypatch.setattr("os.execvpe", takes_the_place)
    with pytest.raises(SystemExit):
        main(["--bundle", str(a_bundle(tmp_path)), sys.executable])
    assert (given[contract.ENV_UNIT], given[contract.ENV_SYNCER_ADDRESS]) == ("lab", "203.0.113.7:7077")


def test_the_launcher_refuses_a_folder_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bundle", str(tmp_path), sys.executable]) == contract.Exit.BAD_CONTRACT
    assert "kubectl diloco join-bundle writes this folder" in capsys.readouterr().err
