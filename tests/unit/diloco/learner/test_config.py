from pathlib import Path

import pytest
from builders.exchange import Place, weights
from diloco import contract
from diloco.contract import Exit
from diloco.environment import ContractError
from diloco.learner.arrays import ArrayStore
from diloco.learner.config import read_learner_config
from diloco.learner.leave import Leave
from diloco.session.session import Session


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return Place(tmp_path).of_learner("127.0.0.1:7077", "v5p-0", 2)


def test_a_learner_knows_who_it_is(environment: dict[str, str]) -> None:
    found = read_learner_config(environment | {contract.ENV_RELATIVE_SPEED: "0.5"})
    assert (found.unit, found.attempt, found.host, found.hosts, found.relative_speed) == ("v5p-0", 2, 0, 1, 0.5)
    assert (found.job.name, found.syncer) == ("job", "127.0.0.1:7077")
    assert found.identity == "diloco://11111111-2222-3333-4444-555555555555/learner/v5p-0/2"
    assert found.host_name == "job-syncer.job.default.svc"
    found.tls.examine(found.identity)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (contract.ENV_UNIT, "", "DILOCO_UNIT is not set"),
        (contract.ENV_ATTEMPT, "0", "DILOCO_ATTEMPT must be an integer of at least 1, not '0'"),
        (contract.ENV_ATTEMPT, "two", "not 'two'"),
        (contract.ENV_HOST, "1", "the unit has 1 host \\("),
        (contract.ENV_RELATIVE_SPEED, "0", r"must be a number in \(0, 1\], not '0'"),
        (contract.ENV_RELATIVE_SPEED, "fast", "not 'fast'"),
        (contract.ENV_RELATIVE_SPEED, "nan", "not 'nan'"),
        (contract.ENV_JOB_FILE, "/nowhere/job.json", "cannot read job file /nowhere/job.json"),
        (contract.ENV_TLS_DIR, "", "DILOCO_TLS_DIR is not set"),
        (contract.ENV_SYNCER_ADDRESS, "", "DILOCO_SYNCER_ADDRESS is not set"),
        ("WORLD_SIZE", "many", "WORLD_SIZE must be an integer of at least 1, not 'many'"),
        ("TORCHELASTIC_MAX_RESTARTS", "3", "start ranks again by itself, 3 times"),
    ],
)
def test_what_is_wrong_is_named(environment: dict[str, str], name: str, value: str, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        read_learner_config(environment | {name: value})


def test_a_wrong_job_file_names_its_fields(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"name": "job", "namespace": "default", "uid": "u", "training": {"steps": 0}}')
    with pytest.raises(ContractError, match=r"training\.steps: Input should be greater than or equal to 1"):
        read_learner_config(environment)


def test_a_program_outside_a_pod_ends_with_the_contracts_status() -> None:
    with pytest.raises(Leave) as left:
        Session.join(ArrayStore(weights()), framework="numpy", environment={})
    assert left.value.code == Exit.BAD_CONTRACT


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({contract.ENV_HOSTS: "2"}, "runs as 2 processes on 2 hosts"),
        ({contract.ENV_HOSTS: "2", "WORLD_SIZE": "16"}, "runs as 16 processes on 2 hosts"),
        ({"WORLD_SIZE": "8", "RANK": "3"}, "runs as 8 processes on 1 host,"),
    ],
)
def test_a_unit_of_several_processes_says_that_it_cannot_join_yet(
    environment: dict[str, str], variables: dict[str, str], message: str
) -> None:
    with pytest.raises(Leave, match=r"^64$") as left:
        Session.join(ArrayStore(weights()), framework="numpy", environment=environment | variables)
    assert message in left.value.message


def test_a_model_with_fewer_tensors_than_fragments_cannot_join(environment: dict[str, str]) -> None:
    with pytest.raises(Leave) as left:
        Session.join(ArrayStore(weights(tensors=1)), framework="numpy", environment=environment)
    assert left.value.code == Exit.REFUSED_LAYOUT
    assert "training.fragments" in left.value.message
