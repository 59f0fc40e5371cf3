"""How the processes of one attempt of a unit find each other: names, ports, and the environment of torch, JAX and TPUs. Pure.

See docs/decisions/0040-learner-pods.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from diloco import contract

from diloco_operator.accelerators import CATALOGUE, Family
from diloco_operator.api import names
from diloco_operator.api.spec import Pool
from diloco_operator.kube.client import Obj
from diloco_operator.reconcile.metadata import owner_reference
from diloco_operator.reconcile.observe.job import Job

TPU_PROCESS_PORT = 8476
_HOST_NAMES, _PROCESS_ADDRESSES = "TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES"
"""Variables that list all hosts. They are also the keys of the lists in the ConfigMap."""
_FIRST_PORT, _PORTS = 20000, 10000
"""Ports below the range of NodePort Services (from 30000) and the ports that a kernel gives to connections (from 32768)."""


@dataclass(frozen=True)
class Peers:
    """The hosts of one attempt."""

    job: Job
    pool: Pool
    unit: str
    attempt: int
    hosts: int

    @cached_property
    def host_names(self) -> Sequence[str]:
        """Host names of the pods, in the order of the hosts."""
        return names.host_names(self.job.name, self.unit, self.attempt, self.hosts)

    @property
    def coordinator_port(self) -> int:
        """Where the ranks meet: MASTER_PORT of torch, the coordinator of jax.distributed. Each attempt has a port of its own, because both
        listen on every address of the machine, and pods with `hostNetwork` or under `diloco up` share one machine."""
        key = f"{self.job.uid}/{self.unit}/{self.attempt}"
        return _FIRST_PORT + zlib.crc32(key.encode()) % (_PORTS // 2) * 2

    @property
    def leader_port(self) -> int:
        return self.coordinator_port + 1 if self.pool.template.spec.get("hostNetwork") else contract.LEADER_PORT

    def counts(self) -> tuple[str, str, str]:
        """Hosts of the unit, processes of each host, accelerators of each host."""
        return str(self.hosts), str(self.pool.processes_per_host or 1), str(self.pool.shape.accelerators_per_host)

    def environment(self) -> list[Obj]:
        """Variables that all pods of the attempt share. MEGASCALE_* are never among them: they would fuse the slices into one program."""
        processes = self.pool.processes_per_host or 1
        env = [_value("PET_NPROC_PER_NODE", str(processes))] if processes > 1 else []
        if self.hosts == 1:
            return env
        first = names.pod_dns_name(self.host_names[0], self.job.name, self.job.namespace)
        port, hosts, ranks = str(self.coordinator_port), str(self.hosts), str(self.hosts * processes)
        env += [
            _value(contract.ENV_LEADER_ADDRESS, f"{first}:{self.leader_port}"),
            _value("MASTER_ADDR", first),
            _value("MASTER_PORT", port),
            _value("NNODES", hosts),
            _value("PET_MASTER_ADDR", first),
            _value("PET_MASTER_PORT", port),
            _value("PET_NNODES", hosts),
            _value("JAX_COORDINATOR_ADDRESS", f"{first}:{port}"),
            _value("JAX_NUM_PROCESSES", ranks),
        ]
        if processes == 1:  # with several, only the launcher can tell the ranks of a host apart
            env += [_value("WORLD_SIZE", ranks), _value("LOCAL_RANK", "0"), _value("LOCAL_WORLD_SIZE", "1")]
        if self._tpu:
            source = names.host_list_name(self.job.name, self.unit, self.attempt, self.hosts)
            lists = (
                {"name": key, "valueFrom": {"configMapKeyRef": {"name": source, "key": key}}} for key in (_HOST_NAMES, _PROCESS_ADDRESSES)
            )
            env += [*lists, _value("TPU_PROCESS_PORT", str(TPU_PROCESS_PORT))]
        return env

    def rank_environment(self, index: int) -> list[Obj]:
        """Variables that tell a pod which host of the unit it is."""
        if self.hosts == 1:
            return []
        host = str(index)
        env = [_value("NODE_RANK", host), _value("PET_NODE_RANK", host)]
        if (self.pool.processes_per_host or 1) == 1:
            env += [_value("RANK", host), _value("JAX_PROCESS_ID", host)]
        return [*env, *([_value("TPU_WORKER_ID", host)] if self._tpu else [])]

    def ports(self, template_ports: Sequence[Mapping[str, Any]]) -> list[Obj]:
        """The template's ports, and the ports at which the hosts meet the first one; [] for a unit of one host. They are declared so that
        with `hostNetwork` the scheduler puts no other pod with one of them on the node."""
        if self.hosts == 1:
            return []
        taken = {port.get("containerPort") for port in template_ports}
        wanted = (("unit-leader", self.leader_port), ("unit-meet", self.coordinator_port))
        return [*map(dict, template_ports), *({"name": name, "containerPort": port} for name, port in wanted if port not in taken)]

    def host_list(self) -> Obj | None:
        """The ConfigMap with the names of all hosts, so that not every pod carries the list. None if the pods need none. It never changes;
        a later attempt has its own."""
        if self.hosts == 1 or not self._tpu:
            return None
        # Short names, which a pod's search domains complete: two thousand of them must fit into one variable.
        job, peers = self.job, [f"{peer}.{names.service_name(self.job.name)}" for peer in self.host_names]
        labels = {names.LABEL_UNIT: self.unit, names.LABEL_POOL: self.pool.name, names.LABEL_ATTEMPT: str(self.attempt)}
        return {
            "apiVersion": names.CONFIG_MAPS.api_version,
            "kind": names.CONFIG_MAPS.kind,
            "metadata": {
                "name": names.host_list_name(job.name, self.unit, self.attempt, self.hosts),
                "namespace": job.namespace,
                "labels": {names.LABEL_JOB: job.name, **labels},
                "ownerReferences": [owner_reference(job)],
            },
            "immutable": True,
            "data": {_HOST_NAMES: ",".join(peers), _PROCESS_ADDRESSES: ",".join(f"{peer}:{TPU_PROCESS_PORT}" for peer in peers)},
        }

    @property
    def _tpu(self) -> bool:
        return CATALOGUE[self.pool.accelerator].family is Family.TPU


def _value(name: str, value: str) -> Obj:
    return {"name": name, "value": value}
