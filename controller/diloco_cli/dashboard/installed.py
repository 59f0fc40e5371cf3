"""Checks whether the dashboard can be served on this machine: its web server is an extra of the package."""

from __future__ import annotations

from importlib.util import find_spec

from diloco_cli.cluster import CommandError

_NEEDED = ("starlette", "uvicorn")


def check_installed() -> None:
    """Raise `CommandError` if the web server is not installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise CommandError(f"the dashboard needs {' and '.join(missing)}: install diloco-operator with its extra `dashboard`")
