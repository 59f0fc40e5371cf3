"""The cluster and namespace that kubectl's flags name, and messages for its errors."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import click
from diloco_operator.api.base import field_path
from diloco_operator.api.names import DILOCO_JOBS, KUBECTL_PLUGIN
from diloco_operator.kube.client import ApiError, Forbidden, Unavailable
from diloco_operator.kube.fields import MalformedField, clip
from diloco_operator.kube.rest import ConfigError, RestClient, load_config
from diloco_operator.kube.rest.transport import OnDate
from pydantic import ValidationError

DEFAULT_NAMESPACE = "default"
EXIT_INTERRUPTED = 130
"""Exit status after SIGINT, as shells report it."""


class CommandError(click.ClickException):
    """An error for the user: printed as `Error: …`, exit status 1."""


@dataclass(frozen=True, slots=True)
class Target:
    """The flags as given, "" for each that was not."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""

    def over(self, other: Target) -> Target:
        """These flags. Where one is empty, `other` has it."""
        return Target(self.kubeconfig or other.kubeconfig, self.context or other.context, self.namespace or other.namespace)


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add -n, --context and --kubeconfig, before or after the command's name. The command gets them as `target`."""

    @click.option("-n", "--namespace", metavar="NAME", default="", help="Namespace. Default: that of the context, else `default`.")
    @click.option("--context", metavar="NAME", default="", help="Context of the kubeconfig. Default: the current one.")
    @click.option("--kubeconfig", metavar="FILE", default="", help="Kubeconfig file. Default: $KUBECONFIG, else ~/.kube/config.")
    @click.pass_context
    @functools.wraps(command)
    def wrapped(ctx: click.Context, /, namespace: str, context: str, kubeconfig: str, **rest: Any) -> Any:
        given = Target(kubeconfig, context, namespace)
        return command(target=given.over(ctx.obj) if isinstance(ctx.obj, Target) else given, **rest)

    return wrapped


def on_cluster[T](target: Target, work: Callable[[RestClient, str], Awaitable[T]], *, on_date: OnDate | None = None) -> T:
    """Run `work` with a client and the namespace, and return what it returns. Errors of the cluster end the program with a message. For
    `on_date` see `OnDate`."""

    async def run() -> T:
        async with connected(target, on_date=on_date) as (client, namespace):
            return await work(client, namespace)

    try:
        return asyncio.run(run())
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None


@contextlib.asynccontextmanager
async def connected(target: Target, *, on_date: OnDate | None = None) -> AsyncIterator[tuple[RestClient, str]]:
    """Yield a client and the namespace. Errors of the cluster within the context become `CommandError`."""
    try:
        config = load_config(target.kubeconfig, target.context)
    except ConfigError as error:
        raise CommandError(str(error)) from error
    source = f"{config.source}, context {target.context}" if target.context else config.source
    with cluster_errors(source):
        async with RestClient.connect(config, user_agent=KUBECTL_PLUGIN, on_date=on_date) as client:
            yield client, target.namespace or config.namespace or DEFAULT_NAMESPACE


@contextlib.contextmanager
def cluster_errors(source: str) -> Iterator[None]:
    """Turn errors of a cluster and its configuration into `CommandError`. `source` names the kubeconfig in messages."""
    try:
        yield
    except ConfigError as error:
        raise CommandError(str(error)) from error
    except Forbidden as error:
        raise CommandError(f"not allowed: {error.message}") from error
    except Unavailable as error:
        raise CommandError(f"the API server of {source} cannot be reached: {error.message}") from error
    except ApiError as error:
        raise CommandError(error.message) from error
    except (MalformedField, ValidationError) as error:
        raise CommandError(f"the API server of {source} has an object that cannot be read: {_malformed(error)}") from error


def _malformed(error: MalformedField | ValidationError) -> str:
    if isinstance(error, MalformedField):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    return clip(f"{field_path(first['loc'])}: {first['msg']}")


def note_on_stderr(text: str) -> None:
    click.echo(f"note: {text}", err=True)


def no_such_resource() -> CommandError:
    """The error that the cluster has no CRD for DiLoCoJobs."""
    return CommandError(
        f"this cluster has no {DILOCO_JOBS.plural}.{DILOCO_JOBS.group}: install the operator first (helm install), or check --context"
    )
