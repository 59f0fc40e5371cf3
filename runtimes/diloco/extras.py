"""Packages that only an extra of diloco brings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def packages_of(extra: str, module: str) -> Iterator[None]:
    """If an import within this context fails, its ImportError says that `module` needs this extra."""
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{module} wants the packages of an extra: pip install --find-links dist 'diloco[{extra}]' ({error})",
            name=error.name,
            path=error.path,
        ) from error
