"""`diloco crd`: the CustomResourceDefinition."""

from __future__ import annotations

import click
from diloco_operator.api.crd import crd_yaml


@click.command(short_help="Print the CustomResourceDefinition of DiLoCoJob.")
def crd() -> None:
    """Print the CustomResourceDefinition of DiLoCoJob.

    To install it: diloco crd | kubectl apply --server-side -f -
    """
    click.echo(crd_yaml(), nl=False)
