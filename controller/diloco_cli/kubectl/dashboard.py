"""`kubectl diloco dashboard`: pages of jobs and of the fleet in a browser, with the caller's own rights.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

import asyncio
import webbrowser

import click
from diloco_operator.kube.rest import RestClient

from diloco_cli.cluster import CommandError, Target, on_cluster, target_options
from diloco_cli.dashboard.installed import check_installed
from diloco_cli.jobs import list_jobs


@click.command(short_help="Show jobs and the fleet in a browser.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Show the jobs of every namespace.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of 127.0.0.1. Default: any that is free.")
@click.option("--browser/--no-browser", default=True, help="Whether to open the browser.  [default: browser]")
@target_options
def dashboard(target: Target, all_namespaces: bool, port: int, browser: bool) -> None:
    """Serve pages of the jobs and of the fleet to a browser on this machine, until Ctrl-C. They follow the cluster with your own kubeconfig
    and rights, and change nothing.

    Only who knows the printed address gets an answer: it has a token. Keep it to yourself.
    """
    check_installed()
    from diloco_cli.dashboard.server import PortTaken, serving

    async def work(client: RestClient, namespace: str) -> None:
        where = "" if all_namespaces else namespace
        await list_jobs(client, where)  # an error of cluster or rights is shown in the terminal, before there is a page
        try:
            async with serving(client, client, where, port) as served:
                click.echo(f"Dashboard of {f'namespace {where}' if where else 'all namespaces'}: {served.url}")
                click.echo("Ctrl-C ends it.")
                if browser:
                    await asyncio.to_thread(webbrowser.open, served.url)
                await asyncio.Event().wait()
        except PortTaken as error:
            raise CommandError(str(error)) from error

    on_cluster(target, work)
