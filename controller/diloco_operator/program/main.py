"""The `diloco-operator` command: the operator as a process in a cluster."""

from __future__ import annotations

import dataclasses
import logging
import socket
import sys
import uuid
from importlib.metadata import version as package_version
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from diloco_operator.api.names import API_VERSION, OPERATOR_LEASE
from diloco_operator.program.catalogue import CatalogueError, catalogue_option, install_catalogue
from diloco_operator.program.duration import Duration

if TYPE_CHECKING:
    from diloco_operator.kube.lease import LeaderElectionConfig
    from diloco_operator.operator.endpoints import Address
    from diloco_operator.timeouts import LeaseTimeouts

log = logging.getLogger(__name__)

_USAGE = 2


class _Address(click.ParamType["Address | None"]):
    name = "host:port"

    def convert(self, value: str | Address, param: click.Parameter | None, ctx: click.Context | None) -> Address | None:
        from diloco_operator.operator.endpoints import Address

        if not isinstance(value, str):
            return value
        try:
            return Address.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _version_text() -> str:
    return f"diloco-operator {package_version('diloco-operator')} ({API_VERSION})"


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(_version_text())
        ctx.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version and exit.")
def main() -> None:
    """Run the operator of DiLoCoJobs in a Kubernetes cluster."""


@main.command()
def version() -> None:
    """Show the version of the operator and of its API."""
    click.echo(_version_text())


@main.command(short_help="Run the operator until SIGTERM.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="Kubeconfig file.  [default: $KUBECONFIG, else the pod's ServiceAccount, else ~/.kube/config]",
)
@click.option("--context", "kube_context", default="", help="Context of the kubeconfig.  [default: the current one]")
@click.option("--watch-namespace", "namespaces", multiple=True, help="Watch jobs of this namespace only. May be repeated.  [default: all]")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="File with an OperatorConfiguration, see docs/operator.md.")
@catalogue_option
@click.option("--leader-elect/--no-leader-elect", default=True, show_default=True, help="Elect one of several replicas; only it writes.")
@click.option("--leader-elect-namespace", default="", help="Namespace of the Lease.  [default: the pod's namespace]")
@click.option("--leader-elect-lease-name", "lease_name", default=OPERATOR_LEASE, show_default=True, help="Name of the Lease.")
@click.option(
    "--leader-elect-former-lease-name",
    "former_lease_name",
    default="",
    help="Name of the Lease in an earlier version of the same Deployment: none of its replicas leads by it while this one does.",
)
@click.option(
    "--lease-duration",
    type=Duration(above_zero=True),
    default="15s",
    show_default=True,
    help="Another replica takes over this long after the last renewal.",
)
@click.option(
    "--renew-deadline",
    type=Duration(above_zero=True),
    default="10s",
    show_default=True,
    help="The leader stops this long after its last renewal.",
)
@click.option("--retry-period", type=Duration(above_zero=True), default="2s", show_default=True, help="Time between two renewals.")
@click.option("--metrics-address", type=_Address(), default="127.0.0.1:8080", show_default=True, help="Address of /metrics; 0: none.")
@click.option(
    "--metrics-auth/--no-metrics-auth",
    default=False,
    show_default=True,
    help="Serve /metrics over TLS, to bearer tokens whose owner may get /metrics.",
)
@click.option("--health-address", type=_Address(), default=":8081", show_default=True, help="Address of /healthz and /readyz; 0: none.")
@click.option("--log-format", type=click.Choice(["json", "text"]), default="json", show_default=True, help="Format of the log.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Lowest level that is logged.",
)
def run(
    *,
    kubeconfig: Path | None,
    kube_context: str,
    namespaces: tuple[str, ...],
    config_file: Path | None,
    catalogue: Path | None,
    leader_elect: bool,
    leader_elect_namespace: str,
    lease_name: str,
    former_lease_name: str,
    lease_duration: float,
    renew_deadline: float,
    retry_period: float,
    metrics_address: Address | None,
    metrics_auth: bool,
    health_address: Address | None,
    log_format: str,
    log_level: str,
) -> None:
    """Run the operator: it reconciles the DiLoCoJobs of a cluster until SIGTERM or SIGINT. A second signal ends it at once.

    \b
    Exit status:
      0  stopped by SIGTERM or SIGINT
      1  a failure
      2  wrong options or configuration
      3  the lease was lost
    """
    from diloco_operator.kube.rest import ConfigError, load_config
    from diloco_operator.operator.endpoints import METRICS, CannotListen
    from diloco_operator.operator.logs import set_up
    from diloco_operator.operator.malloc_tuning import return_freed_memory
    from diloco_operator.operator.process import OperatorProcess, ProcessOptions
    from diloco_operator.program.config import BadConfiguration, load_configuration
    from diloco_operator.timeouts import LeaseTimeouts

    set_up("json" if log_format == "json" else "text", log_level)
    try:
        install_catalogue(catalogue)
        operator_config, run_config = load_configuration(config_file)
        cluster = load_config(kubeconfig or "", kube_context)
        timeouts = LeaseTimeouts(lease_duration, renew_deadline, retry_period)
        namespace = leader_elect_namespace or cluster.namespace
        election = _election(namespace, lease_name, former_lease_name, timeouts) if leader_elect else None
    except (BadConfiguration, CatalogueError, ConfigError, ValueError) as error:
        _refuse(error)
    release = package_version("diloco-operator")
    log.info("diloco-operator %s", release)
    return_freed_memory()
    options = ProcessOptions(
        cluster=cluster,
        operator=operator_config,
        run=dataclasses.replace(run_config, namespaces=namespaces),
        election=election,
        metrics=metrics_address,
        metrics_auth=metrics_auth,
        health=health_address,
        version=release,
    )

    try:
        status = OperatorProcess(options).run()
    except CannotListen as error:
        option = "--metrics-address" if error.what == METRICS else "--health-address"
        _refuse(f"{error}; choose another address with {option}, or 0 for none")
    except (ConfigError, OSError) as error:
        _refuse(error)
    sys.exit(status)


def _election(namespace: str, name: str, former: str, timeouts: LeaseTimeouts) -> LeaderElectionConfig:
    """Raises ValueError without a namespace, or if the former Lease has the same name."""
    from diloco_operator.kube.lease import LeaderElectionConfig

    if not namespace:
        raise ValueError("the namespace of the Lease is not known: set --leader-elect-namespace, or --no-leader-elect for a single replica")
    if name == former:
        raise ValueError(f"the Lease is {name} now and in the earlier version: leave --leader-elect-former-lease-name out")
    # Unique: a restarted process or another pod on the same host gets another identity.
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"
    return LeaderElectionConfig(namespace, name, identity, timeouts, former)


def _refuse(error: Exception | str) -> NoReturn:
    log.error("%s", error)
    sys.exit(_USAGE)


if __name__ == "__main__":
    main()
