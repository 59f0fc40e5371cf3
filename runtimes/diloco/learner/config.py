"""A learner's configuration from the contract's environment: its identity, its job and the syncer's address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diloco import contract
from diloco.environment import ContractError, integer, read_job_file, required, tls_files
from diloco.protocol.tls import TlsFiles
from diloco.wording import plural


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    job: contract.JobFile
    tls: TlsFiles
    unit: str
    attempt: int
    host: int
    hosts: int
    ranks: int
    """Processes of the unit on all its hosts, as torchrun or diloco-launch has started them."""
    syncer: str
    """host:port."""
    leader_address: str
    """host:port where the leader of a unit of several hosts listens for the other ranks. Empty if the unit has one host."""
    pod_ip: str
    """Address of this pod. Empty if unknown."""
    locality: str
    """Where the unit runs, from far to near, with "/" between the parts. Empty if unknown."""
    cluster: str
    """The cluster in which the unit runs. Empty if it is the syncer's."""
    relative_speed: float
    """The relative speed of the simulated node, in (0, 1]; 1 on real hardware."""

    @property
    def identity(self) -> str:
        """The identity that this process's certificate must have."""
        return contract.learner_identity(self.job.uid, self.unit, self.attempt)

    @property
    def host_name(self) -> str:
        """The name that the syncer's certificate must have."""
        return contract.syncer_host_name(self.job.name, self.job.namespace)


def read_learner_config(environment: Mapping[str, str]) -> LearnerConfig:
    """Return the configuration in `environment`. Raises ContractError, which names the variable."""
    hosts = integer(environment, contract.ENV_HOSTS, 1, 1)
    config = LearnerConfig(
        job=read_job_file(environment),
        tls=tls_files(environment),
        unit=required(environment, contract.ENV_UNIT),
        attempt=integer(environment, contract.ENV_ATTEMPT, None, 1),
        host=integer(environment, contract.ENV_HOST, 0, 0),
        hosts=hosts,
        ranks=max(hosts, integer(environment, "WORLD_SIZE", 1, 1)),
        syncer=required(environment, contract.ENV_SYNCER_ADDRESS),
        leader_address=environment.get(contract.ENV_LEADER_ADDRESS, ""),
        pod_ip=environment.get(contract.ENV_POD_IP, ""),
        locality=environment.get(contract.ENV_LOCALITY, ""),
        cluster=environment.get(contract.ENV_CLUSTER, ""),
        relative_speed=_speed(environment),
    )
    restarts = environment.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if restarts != "0":
        raise ContractError(
            f"torchrun would start ranks again by itself, {restarts} times (--max-restarts): they would come back without the state of the "
            "unit. Leave the option out: the operator restarts the unit as a whole, see spec.learners.restart"
        )
    if config.host >= config.hosts:
        raise ContractError(
            f"{contract.ENV_HOST} is {config.host}, but the unit has {plural(config.hosts, 'host')} ({contract.ENV_HOSTS}), counted from 0"
        )
    return config


def _speed(environment: Mapping[str, str]) -> float:
    text = environment.get(contract.ENV_RELATIVE_SPEED, "") or "1"
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed <= 1:
        raise ContractError(f"{contract.ENV_RELATIVE_SPEED} must be a number in (0, 1], not {text!r}")
    return speed
