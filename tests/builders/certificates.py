"""Certificates for tests and benchmarks that start syncers and learners themselves: what an operator would have mounted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import grpc
from diloco import contract
from diloco.protocol.channel import Keepalive, client_options
from diloco.protocol.tls import TlsFiles
from diloco_operator.certificates.authority import Authority, Leaf
from diloco_operator.certificates.issuing import Issuer

DAY = 86400.0


class JobCertificates:
    """A job's authority, and directories with certificates under `folder`."""

    def __init__(
        self,
        folder: Path,
        job: contract.JobFile,
        *,
        lifetime: float = DAY,
        now: Callable[[], float] = time.time,
        authority: Authority | None = None,
    ) -> None:
        self.folder = folder
        self.job = job
        self.issuer = Issuer(now, lifetime)
        self.authority = authority or self.issuer.authority(job.uid)

    def syncer(self, *, roots: str = "") -> TlsFiles:
        """Write the files of the job's syncer. `roots`: whom it trusts instead of this authority alone."""
        host_name = contract.syncer_host_name(self.job.name, self.job.namespace)
        return self.write("syncer", Leaf("", contract.syncer_identity(self.job.uid), (host_name,), connects=False), roots=roots)

    def learner(self, unit: str, attempt: int = 1) -> TlsFiles:
        """Write the files of one attempt of a unit."""
        own_name = contract.learner_host_name(self.job.name, self.job.namespace, unit, attempt)
        return self.write(f"{unit}-a{attempt}", Leaf("", contract.learner_identity(self.job.uid, unit, attempt), (own_name,)))

    def operator(self) -> TlsFiles:
        """Write the files of the operator as a client of the syncer."""
        return self.write("operator", Leaf("", contract.operator_identity(self.job.uid)))

    def part(self, name: str, job_uid: str = "") -> TlsFiles:
        """Write the files of the operator of a part's cluster. `job_uid`: of another job than this one."""
        return self.write(f"part-{name}", Leaf("", contract.part_identity(job_uid or self.job.uid, name)))

    def write(self, name: str, leaf: Leaf, *, roots: str = "") -> TlsFiles:
        """Files under `name`, new or renewed. `roots`: what they trust instead of this authority alone."""
        pem = self.issuer.sign(self.authority, leaf)
        files = TlsFiles(self.folder / name)
        files.folder.mkdir(parents=True, exist_ok=True)
        for path, text in ((files.roots, roots or self.authority.root.pem), (files.identity, pem)):
            fresh = path.with_suffix(".new")
            fresh.write_text(text)
            fresh.replace(path)
        return files

    def channel(self, address: str, files: TlsFiles) -> grpc.Channel:
        """To the job's syncer, with the identity in `files`."""
        return channel(address, files, self.job)


def channel(address: str, files: TlsFiles, job: contract.JobFile) -> grpc.Channel:
    """To the syncer of `job`."""
    host_name = contract.syncer_host_name(job.name, job.namespace)
    return grpc.secure_channel(address, files.read().channel_credentials(), options=client_options(Keepalive(), host_name))
