"""Imports of parts of a package without the rest of it, for commands that people and scripts start often.

See docs/decisions/0086-reading-the-api.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec


@contextmanager
def without_init(*packages: str) -> Iterator[None]:
    """Inside the context, submodules of these packages are imported without the packages' own `__init__`. Afterwards an import of such a
    package runs it. Name a package before its parts. A package that is imported already stays as it is.

    Raises ModuleNotFoundError.
    """
    bare = []
    try:
        for name in packages:
            if name not in sys.modules:
                spec = find_spec(name)
                if spec is None:
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
                sys.modules[name] = module_from_spec(spec)
                bare.append(name)
        yield
    finally:
        for name in bare:
            del sys.modules[name]
