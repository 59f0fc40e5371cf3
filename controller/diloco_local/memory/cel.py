"""CEL rules of a schema (`x-kubernetes-validations`): compiled once, evaluated on plain JSON. Pure.

The library cannot check types ahead of time, so an unknown field or function shows as an evaluation error, which rejects the object.

See docs/decisions/0010-crd-and-limits.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from diloco_operator.kube.imports import without_init

with without_init("cel"):  # its __init__ imports the library's own shell, with rich and prompt_toolkit: half a second and 20 MiB
    from cel import cel

# What the library raises: missing keys, wrong types, failing functions, numbers out of range, division by zero.
EVALUATION_ERRORS = (KeyError, RuntimeError, TypeError, ValueError, ArithmeticError, IndexError)
_STRING = re.compile(r"""r?("([^"\\]|\\.)*"|'([^'\\]|\\.)*')""")
_USE = re.compile(r"\b(self|oldSelf)\b(\s*\.\s*([A-Za-z_]\w*+)(?!\s*\())?")
_FUNCTIONS = {"sum": sum}
"""Functions of Kubernetes' CEL that the job's rules call and the library lacks."""


class CelError(ValueError):
    """An expression does not compile, or its result has the wrong type."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression over `self` and, if `uses_old`, `oldSelf`."""

    source: str
    program: Any
    needs_functions: bool
    uses_old: bool
    fields: frozenset[str] | None
    """The top-level fields of self and oldSelf that the expression reads. None if it may read all of them."""

    def run(self, value: Any, old: Any = None) -> Any:
        """The value of the expression. Raises `CelError`."""
        variables = {"self": value, "oldSelf": old} if self.uses_old else {"self": value}
        try:
            return self.program.execute(cel.Context(variables, _FUNCTIONS) if self.needs_functions else variables)
        except EVALUATION_ERRORS as error:
            reason = f"no such key: {error.args[0]}" if isinstance(error, KeyError) and error.args else str(error)
            raise CelError(f"{self.source!r}: {reason}") from error


def compile_expression(source: str) -> Expression:
    """Raises `CelError` with the parser's message."""
    try:
        program = cel.compile(source)
    except ValueError as error:
        raise CelError(str(error)) from error
    uses = list(_USE.finditer(_STRING.sub("''", source)))
    fields = frozenset(use[3] for use in uses) if uses and all(use[3] for use in uses) else None
    needs_functions = not _FUNCTIONS.keys().isdisjoint(program.functions())
    return Expression(source, program, needs_functions, any(use[1] == "oldSelf" for use in uses), fields)
