"""CEL rules of a schema (`x-kubernetes-validations`): compiled once, evaluated on plain JSON. Pure.

This module adds Kubernetes' functions that the library lacks. The library cannot check types ahead of time, so an unknown field shows as an
evaluation error, which rejects the object as in Kubernetes.

See docs/decisions/0010-crd-and-limits.md.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from diloco_operator.kube.imports import without_init

with without_init("cel"):  # it would bring the library's own shell, with rich and prompt_toolkit: half a second and 20 MiB
    from cel import cel, stdlib

# What the library raises: missing keys, wrong types, failing functions, numbers out of range, division by zero.
EVALUATION_ERRORS = (KeyError, RuntimeError, TypeError, ValueError, ArithmeticError, IndexError)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STRING = re.compile(r"""r?("([^"\\]|\\.)*"|'([^'\\]|\\.)*')""")
_OPERATOR = re.compile(r"^[@_!-]")
_USE = re.compile(r"\b(self|oldSelf)\b(\s*\.\s*([A-Za-z_]\w*+)(?!\s*\())?")
_RESERVED = _words(
    "true false null in as break const continue else for function if import let loop package namespace return var void while"
)


_CORE = _words(
    "size contains startsWith endsWith matches int uint double string bytes bool dyn type duration timestamp of ofNonZeroValue none "
    "hasValue value orValue or getFullYear getMonth getDate getDayOfMonth getDayOfWeek getDayOfYear getHours getMinutes getSeconds "
    "getMilliseconds"
)
"""The library's own functions."""


class CelError(ValueError):
    """An expression does not compile, or its result has the wrong type."""


def _index_of(value: Any, wanted: Any, start: int = 0) -> int:
    if isinstance(value, str):
        return value.find(wanted, start)
    return value.index(wanted) if wanted in value else -1


def _last_index_of(value: Any, wanted: Any) -> int:
    if isinstance(value, str):
        return value.rfind(wanted)
    return len(value) - 1 - value[::-1].index(wanted) if wanted in value else -1


def _find(value: str, pattern: str) -> str:
    match = re.search(pattern, value)
    return match[0] if match else ""


def _find_all(value: str, pattern: str, limit: int = -1) -> list[str]:
    found = [match[0] for match in re.finditer(pattern, value)]
    return found if limit < 0 else found[:limit]


def _is_sorted(values: list[Any]) -> bool:
    return all(a <= b for a, b in itertools.pairwise(values))


@functools.cache
def _functions() -> Mapping[str, Callable[..., Any]]:
    context = cel.Context()
    stdlib.add_stdlib_to_context(context)
    own: dict[str, Callable[..., Any]] = {
        "indexOf": _index_of,
        "lastIndexOf": _last_index_of,
        "find": _find,
        "findAll": _find_all,
        "isSorted": _is_sorted,
    }
    every: dict[str, Callable[..., Any]] = {**context.functions, **own}
    return {name: function for name, function in every.items() if name not in _CORE}


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression over `self` and, if `uses_old`, `oldSelf`."""

    source: str
    program: Any
    functions: Mapping[str, Callable[..., Any]]
    uses_old: bool
    fields: frozenset[str] | None
    """The top-level fields of self and oldSelf that it reads; None: unknown, or all of them."""

    def run(self, value: Any, old: Any = None, *, with_old: bool = False) -> Any:
        """Evaluate. Raises `CelError`."""
        variables = {"self": value, "oldSelf": old} if with_old else {"self": value}
        try:
            if self.functions:
                return self.program.execute(cel.Context(variables, dict(self.functions)))
            return self.program.execute(variables)
        except EVALUATION_ERRORS as error:
            reason = f"no such key: {error.args[0]}" if isinstance(error, KeyError) and error.args else str(error)
            raise CelError(f"{self.source!r}: {reason}") from error


def compile_expression(source: str) -> Expression:
    """Compile. Raises `CelError` with the parser's message."""
    try:
        program = cel.compile(source)
    except ValueError as error:
        raise CelError(str(error)) from error
    code = _STRING.sub("''", source)
    if "?." in code or ".?" in code or "[?" in code:  # pragma: no cover - the parser rejects them; a newer one may not
        raise CelError(f"{source!r}: optional field selection is not supported")
    available = _functions()
    spaces = {name for name in program.variables() if any(function.startswith(f"{name}.") for function in available)}
    needed: dict[str, Callable[..., Any]] = {}
    for name in program.functions():
        full = [name, *(f"{space}.{name}" for space in sorted(spaces))]
        found = {each: available[each] for each in full if each in available}
        if not found and name not in _CORE and not _OPERATOR.match(name):
            raise CelError(f"{source!r}: undeclared function {name!r}")
        needed |= found
    uses = list(_USE.finditer(code))
    fields = frozenset(use[3] for use in uses) if uses and all(use[3] for use in uses) else None
    return Expression(source, program, needed, any(use[1] == "oldSelf" for use in uses), fields)


def optional(value: Any, *, present: bool) -> Any:
    """Return oldSelf of a rule with `optionalOldSelf`."""
    return cel.OptionalValue.of(value) if present else cel.OptionalValue.none()


@functools.lru_cache(maxsize=4096)
def escape(name: str) -> str:
    """Return a property's name as CEL sees it: `a-b` is `a__dash__b`, `namespace` is `__namespace__`."""
    if name in _RESERVED:
        return f"__{name}__"
    for char, word in (("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__")):
        name = name.replace(char, word)
    return name
