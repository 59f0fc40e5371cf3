"""`python -m simulated_nodes`: simulated nodes for a real cluster, on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from diloco.wording import plural
from diloco_cli.fleet_file import BadFleet, load_fleet
from diloco_local.addresses import NoAddressLeft, PortTaken
from diloco_local.containers import first_of
from diloco_local.state_dir import StateDirBusy, StateDirUnusable
from diloco_operator.kube.client import ApiError, Obj
from diloco_operator.kube.rest import ClientConfig, ConfigError, RestClient, load_config

from simulated_nodes.cluster_nodes import ForeignNodes
from simulated_nodes.joined import SimulatedNodes
from simulated_nodes.names import STORAGE_CLASS


@click.command()
@click.option("--kubeconfig", metavar="FILE", default="", help="Kubeconfig file. Default: $KUBECONFIG, else ~/.kube/config.")
@click.option("--fleet", metavar="FILE", help="File with Kubernetes Node manifests. Default: this machine as cpu nodes.")
@click.option(
    "--state-dir", type=click.Path(file_okay=False, path_type=Path), default=Path(".diloco-nodes"), show_default=True,
    help="Directory for volumes and logs. A later run with it takes over its nodes and volumes.",
)  # fmt: skip
@click.option("--all-pods", is_flag=True, help="Also run pods that belong to no DiLoCoJob. They run as your user.")
def main(kubeconfig: str, fleet: str | None, state_dir: Path, all_pods: bool) -> None:
    """Join simulated nodes to a cluster. Pods that its scheduler binds to them run as processes on this machine, as your user.

    Use a cluster that you trust: every user who may create pods in it can run programs here. The operator must run on this machine too,
    because the pods have addresses in 127.0.0.0/8.

    Ctrl-C ends the pods and removes the nodes. A second Ctrl-C kills at once.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    try:
        asyncio.run(_serve(load_config(kubeconfig), load_fleet(fleet), state_dir, all_pods=all_pods))
    except BadFleet as error:
        raise click.ClickException("; ".join(error.sentences)) from error
    except (ForeignNodes, StateDirBusy, StateDirUnusable, NoAddressLeft, PortTaken, ConfigError, ApiError) as error:
        raise click.ClickException(str(error)) from error


async def _serve(config: ClientConfig, manifests: Sequence[Obj], state_dir: Path, *, all_pods: bool) -> None:
    async with RestClient.connect(config) as client:
        joined = SimulatedNodes(client, state_dir, manifests, all_pods=all_pods)
        with _interrupts() as (first, second):
            async with joined:
                click.echo(f"{plural(len(manifests), 'node is', 'nodes are')} Ready: {', '.join(joined.nodes.names)}")
                click.echo(f"volumes: StorageClass {STORAGE_CLASS}; logs of the pods: {joined.state_dir.logs}; Ctrl-C removes the nodes")
                await first_of(_failure(joined), first.wait())
                click.echo("ending the pods and removing the nodes; Ctrl-C again kills at once")
                if await first_of(joined.leave(), second.wait()):
                    click.echo("the nodes are removed; volumes stay, and the same command uses them again")
                else:
                    click.echo("killed; the nodes stay in the cluster and become NotReady")


async def _failure(joined: SimulatedNodes) -> None:
    """Wait until a background task fails. Raises its exception."""
    await asyncio.shield(joined.tasks.failed)


@contextlib.contextmanager
def _interrupts() -> Iterator[tuple[asyncio.Event, asyncio.Event]]:
    """Set by the first and by the second SIGINT or SIGTERM."""
    loop = asyncio.get_running_loop()
    first, second = asyncio.Event(), asyncio.Event()

    def interrupt() -> None:
        (second if first.is_set() else first).set()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, interrupt)
    try:
        yield first, second
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


if __name__ == "__main__":
    main()
