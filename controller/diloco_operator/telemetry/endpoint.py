"""Where the syncer of a job listens, and a channel to it.

See docs/decisions/0041-what-a-syncer-says.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc
import grpc.aio
from diloco.contract import MOST_PARTS, SYNCER_PORT, operator_identity

from diloco_operator.api.rules import MAX_PART_UNITS
from diloco_operator.api.spec import MAX_LEARNERS, MAX_OUTSIDE, Spec
from diloco_operator.certificates.authority import Authority, Leaf
from diloco_operator.certificates.issuing import Issuer
from diloco_operator.timeouts import TelemetryTimeouts


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a job's syncer listens, and what a connection to it needs."""

    pod_uid: str
    """Tells syncer pods apart, since another one may get the same address. "" if the syncer is in another cluster."""
    host: str
    job_uid: str
    host_name: str
    """The name that the syncer's certificate must have, whatever its address is."""
    identity: Authority | str = field(repr=False)
    """The authority that signs the operator's certificate, or in a part the key and certificate that home has signed, PEM."""
    roots: str
    """PEM certificates of the authorities that may have signed the syncer's certificate."""
    port: int = SYNCER_PORT
    most_units: int = MAX_LEARNERS
    """Units that a report of this job may have, see `most_units_of`."""

    @property
    def most_bytes(self) -> int:
        """Bytes that a report of this job may have."""
        return _BYTES_OF_JOB + self.most_units * _BYTES_OF_UNIT

    @property
    def address(self) -> str:
        """`host:port` as gRPC wants it; an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


_BYTES_OF_JOB = 256 << 10
"""The most bytes of a report without its units: mainly the two loss histories."""
_BYTES_OF_UNIT = 1 << 10
"""The most bytes of a unit in a report, on average: its figures, name, reasons for refusals and message. Chosen, not measured."""


_MOST_OWN = 2 * MAX_LEARNERS
"""Units of pools here that a syncer may report, as many as a status can list."""
MOST_UNITS = _MOST_OWN + MOST_PARTS * MAX_PART_UNITS + MAX_OUTSIDE
"""Units that the syncer of any job may report."""


def most_units_of(spec: Spec | None) -> int:
    """Return how many units the job's syncer may report: as many as its pools here can have, but at least as many as a job of one pool can;
    and those of its parts and outside. A syncer reports every unit that it has ever seen, so a job that was scaled down reports more units
    than its spec has now."""
    if spec is None:
        return MAX_LEARNERS
    own = sum(min(pool.learners.max, spec.learners.max) for pool in spec.pools)
    elsewhere = sum(len(part.units) for part in spec.parts) + len(spec.learners.outside)
    return min(max(own, MAX_LEARNERS), _MOST_OWN) + elsewhere


def open_channel(endpoint: Endpoint, now: float) -> grpc.aio.Channel:
    """Open a channel to one syncer, with a new certificate. The operator reconnects with a back-off of its own, because calls may be lost
    for ever when gRPC reconnects (decision 0150). A proxy from the environment must not be used."""
    if isinstance(endpoint.identity, str):
        pem = endpoint.identity.encode()
    else:
        issuer = Issuer(lambda: now, TelemetryTimeouts().certificate)
        pem = issuer.sign(endpoint.identity, Leaf("", operator_identity(endpoint.job_uid))).encode()
    return grpc.aio.secure_channel(
        endpoint.address,
        grpc.ssl_channel_credentials(endpoint.roots.encode(), private_key=pem, certificate_chain=pem),
        options=[
            # The address is a pod's or a gateway's, but the certificate has the name.
            ("grpc.ssl_target_name_override", endpoint.host_name),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
            # Else gRPC shares one connection between jobs whose syncers had one address, with the certificate of the first.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", endpoint.most_bytes),
            # Reports that are not read wait at the syncer. The window must stay small for that, so gRPC may not probe the bandwidth.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", 256 << 10),
        ],
    )
