"""Which cluster and namespace a command is about, with kubectl's own flags, and errors for people."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import click

from diloco_operator.api.names import DILOCO_JOBS, KUBECTL_PLUGIN
from diloco_operator.kube.client import ApiError, Forbidden, Unavailable
from diloco_operator.kube.rest import ConfigError, RestClient, load_config

DEFAULT_NAMESPACE = "default"
EXIT_INTERRUPTED = 130
"""What shells give for SIGINT."""


class Trouble(click.ClickException):
    """Something that the person at the terminal must know; said as `Error: …`, exit status 1."""


@dataclass(frozen=True, slots=True)
class Target:
    """The flags as given; "" where one was not."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""

    def over(self, other: Target) -> Target:
        """These flags, and the other's where these say nothing."""
        return Target(self.kubeconfig or other.kubeconfig, self.context or other.context, self.namespace or other.namespace)


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """-n, --context and --kubeconfig, before or behind the command's name; the command gets them as `target`."""

    @click.option("-n", "--namespace", metavar="NAME", default="", help="Default: the context's, else default.")
    @click.option("--context", metavar="NAME", default="", help="Of the kubeconfig; default: its current one.")
    @click.option("--kubeconfig", metavar="FILE", default="", help="Default: $KUBECONFIG, else ~/.kube/config.")
    @click.pass_context
    @functools.wraps(command)
    def wrapped(ctx: click.Context, /, namespace: str, context: str, kubeconfig: str, **rest: Any) -> Any:
        given = Target(kubeconfig, context, namespace)
        return command(target=given.over(ctx.obj) if isinstance(ctx.obj, Target) else given, **rest)

    return wrapped


def on_cluster(target: Target, work: Callable[[RestClient, str], Awaitable[None]]) -> None:
    """Do `work` with a client and the namespace meant. What goes wrong with the cluster ends the program with words about it."""
    try:
        config = load_config(target.kubeconfig, target.context)
    except ConfigError as error:
        raise Trouble(str(error)) from error

    async def connected() -> None:
        async with RestClient.connect(config, user_agent=KUBECTL_PLUGIN) as client:
            await work(client, target.namespace or config.namespace or DEFAULT_NAMESPACE)

    try:
        asyncio.run(connected())
    except ConfigError as error:
        raise Trouble(str(error)) from error
    except Forbidden as error:
        raise Trouble(f"you may not do that: {error.message}") from error
    except Unavailable as error:
        raise Trouble(f"the API server of {config.source} cannot be reached: {error.message}") from error
    except ApiError as error:
        raise Trouble(error.message) from error
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None


def no_such_resource() -> Trouble:
    """The cluster does not know DiLoCoJobs at all."""
    return Trouble(
        f"this cluster has no {DILOCO_JOBS.plural}.{DILOCO_JOBS.group}: install the operator first (helm install), or check --context"
    )
