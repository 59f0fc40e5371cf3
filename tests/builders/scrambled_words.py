"""A plugin of pytest: beside each `reconcile` of a test a second one runs, of which every message is a random string. Both must decide the
same: `pytest -p builders.scrambled_words --scrambled-report FILE`.

The modules are changed as they are imported. What has a space and a letter is prose: a literal, an f-string, or a constant of a module. It
goes through `_say`, which returns it, or in the second reconcile its digest: words that nothing can read, the same for the same text. So
what a reconcile reads back from a status that the second one wrote changes exactly when the words do.

See docs/decisions/0231-states-reasons-words.md.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.abc
import importlib.machinery
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest
from diloco_operator.api.unit_figures import KEYS

_PACKAGES = tuple(f"diloco_operator.reconcile.{each}" for each in ("engine", "grantors", "status", "units", "children.syncer_words"))
_WORDS_OF_OTHERS = frozenset({"start_waits._REFUSALS"})
"""Constants that hold what kubelets and registries say: the operator reads these, because nothing else tells it."""
_PROSE = frozenset({"message", "beganWith", "endedWith", "said", "grantorSaid", "lastFailure", "cause", "remedies", "why", "lacks", "text"})
"""Fields of plans and of a status that hold words."""
_FIGURES = frozenset({"progress", "goodput", "measuredSeconds", "value", *KEYS.values()})
"""Fields of a status that are not worth a write of their own."""


class Scrambler:
    """Which prose there is, which of it was used in a second reconcile, and what these decided otherwise."""

    def __init__(self) -> None:
        self.on = False
        self.prose: dict[str, str] = {}
        """Module and line of each -> how it begins."""
        self.used: set[str] = set()
        self.differences: list[str] = []
        self.reconciles = 0
        self._known: dict[tuple[str, str], str] = {}
        """Place in a status and text of the first reconcile -> that of the second."""

    def say(self, where: str, text: Any) -> Any:
        """Return the words, or in a second reconcile a string that has nothing of them."""
        if not self.on:
            return text
        self.used.add(where)
        return _scrambled(where, text)

    def status(self, status: Mapping[str, Any]) -> dict[str, Any]:
        """Return the status with the words that the second reconciles gave it."""
        return {key: self._translated(key, value) for key, value in status.items()}

    def _translated(self, path: str, value: Any, *, prose: bool = False) -> Any:
        if isinstance(value, Mapping):
            return {key: self._translated(f"{path}.{key}", each, prose=key in _PROSE) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._translated(f"{path}.{index}", each, prose=prose) for index, each in enumerate(value)]
        if prose and isinstance(value, str):
            return self._known.get((path, value)) or _scrambled(path, value)
        return value

    def learn(self, first: Any, second: Any, path: str = "") -> None:
        """Remember the words of two statuses that say the same."""
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            for key in first.keys() & second.keys():
                self.learn(first[key], second[key], f"{path}.{key}" if path else str(key))
        elif isinstance(first, list | tuple) and isinstance(second, list | tuple):
            for index, (one, other) in enumerate(zip(first, second, strict=False)):
                self.learn(one, other, f"{path}.{index}")
        elif isinstance(first, str) and isinstance(second, str) and first != second:
            self._known[path, first] = second

    @contextlib.contextmanager
    def scrambling(self) -> Iterator[None]:
        """Say nothing that can be read."""
        self.on = True
        try:
            yield
        finally:
            self.on = False


def _scrambled(where: str, value: Any) -> Any:
    if isinstance(value, str):
        return f"#{hashlib.sha256(f'{where}\0{value}'.encode()).hexdigest()[:20]}" if value else ""
    if isinstance(value, Mapping):
        return {key: _scrambled(where, each) for key, each in value.items()}
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(_scrambled(where, each) if isinstance(each, str) and " " in each else each for each in value)
    return value


SCRAMBLER = Scrambler()


# --- modules whose words can be scrambled --------------------------------------------------------------------------------
def _is_prose(node: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(each, ast.Constant) and _is_prose(each) for each in node.values)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value and any(map(str.isalpha, node.value))


def _constants(module: ast.Module) -> set[str]:
    """Names of the constants of a module that hold prose."""
    found: set[str] = set()
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if value is not None and any(_is_prose(each) for each in ast.walk(value)):
            found.update(each.id for each in targets if isinstance(each, ast.Name))
    return found


class _Rewriter(ast.NodeTransformer):
    """Puts prose of functions, and the constants that functions use, through `SCRAMBLER.say`."""

    def __init__(self, module: str, constants: Mapping[str, str]) -> None:
        self._module = module.rpartition(".")[2]
        self._constants = constants
        """Name in this module -> module and name where it stands."""
        self._depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._depth += 1
        body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
        node.body = node.body[: len(node.body) - len(body)] + [self.visit(each) for each in body]
        self._depth -= 1
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        node.test = self.visit(node.test)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        node.body = [self.visit(each) for each in node.body]
        node.guard = self.visit(node.guard) if node.guard is not None else None
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        for each in node.values:
            if isinstance(each, ast.FormattedValue):
                each.value = self.visit(each.value)
        return self._said(node, ast.unparse(node)) if self._depth and _is_prose(node) else node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return self._said(node, repr(node.value)) if self._depth and _is_prose(node) else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        where = self._constants.get(node.id)
        if not self._depth or where is None or not isinstance(node.ctx, ast.Load):
            return node
        return self._call(where, node)

    def _said(self, node: ast.expr, begins: str) -> ast.AST:
        where = f"{self._module}:{node.lineno}:{node.col_offset}"
        SCRAMBLER.prose[where] = begins[:100]
        return self._call(where, node)

    def _call(self, where: str, node: ast.expr) -> ast.AST:
        call = ast.Call(ast.Name("__say__", ast.Load()), [ast.Constant(where), node], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))


class _Loader(importlib.machinery.SourceFileLoader):
    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        tree = ast.parse(data)
        constants = {name: f"{self.name.rpartition('.')[2]}.{name}" for name in _constants(tree)}
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PACKAGES):
                theirs = _constants(ast.parse(_source(node.module or "")))
                constants |= {
                    each.asname or each.name: f"{(node.module or '').rpartition('.')[2]}.{each.name}"
                    for each in node.names
                    if each.name in theirs
                }
        constants = {name: where for name, where in constants.items() if where not in _WORDS_OF_OTHERS}
        for where in constants.values():
            SCRAMBLER.prose.setdefault(where, where)
        return compile(_Rewriter(self.name, constants).visit(tree), path, "exec", dont_inherit=True, optimize=_optimize)

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)  # never from the cache, into which the changed code must not come either

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__say__"] = SCRAMBLER.say
        super().exec_module(module)


def _source(module: str) -> str:
    spec = importlib.machinery.PathFinder.find_spec(module, _parent_path(module))
    return Path(spec.origin).read_text() if spec is not None and spec.origin is not None else ""


def _parent_path(module: str) -> Sequence[str] | None:
    parent = module.rpartition(".")[0]
    return list(importlib.import_module(parent).__path__) if parent else None


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(_PACKAGES):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


# --- two reconciles ------------------------------------------------------------------------------------------------------
def decisions(value: Any) -> Any:
    """What a plan decides: all of it but words."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: decisions(getattr(value, each.name)) for each in fields(value) if each.name not in _PROSE}
    if isinstance(value, Mapping):
        return {key: decisions(each) for key, each in value.items() if key not in _PROSE}
    if isinstance(value, tuple | list):
        return [decisions(each) for each in value]
    if isinstance(value, frozenset | set):
        return sorted(map(repr, value))
    return value


def _decided(plan: Any, status: Mapping[str, Any], *, late: bool) -> Any:
    """The decisions of a plan and the status after it. `late`: one of two plans writes a status because its words changed, and with it
    figures that the other leaves for later."""
    found = {**decisions(replace(plan, status=None)), "status": decisions(status)}
    if not late:
        return found
    del found["requeue_after"]
    return _without_figures(found)


def _without_figures(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_figures(each) for key, each in value.items() if key not in _FIGURES}
    return [_without_figures(each) for each in value] if isinstance(value, list) else value


def _difference(one: Any, other: Any, path: str = "plan") -> str:
    """The first place where two plans differ; "": they do not."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}, key=str):
            if found := _difference(one.get(key), other.get(key), f"{path}.{key}"):
                return found
        return ""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return next(
            (found for index, pair in enumerate(zip(one, other, strict=True)) if (found := _difference(*pair, f"{path}[{index}]"))), ""
        )
    return "" if one == other else f"{path}: {one!r}, with other words {other!r}"


def _check_words() -> None:
    """From now on `reconcile` runs twice."""
    from diloco_operator import reconcile as package

    decide = package.reconcile

    def twice(observed: Any, now: datetime, **options: Any) -> Any:
        plan = decide(observed, now, **options)
        with SCRAMBLER.scrambling():
            other = decide(replace(observed, job=replace(observed.job, status=SCRAMBLER.status(observed.job.status))), now, **options)
        SCRAMBLER.reconciles += 1
        before = observed.job.status
        first, second = (each.status.status if each.status is not None else before for each in (plan, other))
        if plan.status is not None and other.status is not None:
            SCRAMBLER.learn(first, second)
        late = (plan.status is None) is not (other.status is None)
        one, two = (_decided(each, status, late=late) for each, status in ((plan, first), (other, second)))
        if found := _difference(one, two):
            SCRAMBLER.differences.append(found)
        return plan

    package.reconcile = twice


sys.meta_path.insert(0, _Finder())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--scrambled-report", type=Path, required=True)


def pytest_configure() -> None:
    _check_words()


def pytest_sessionfinish(session: pytest.Session) -> None:
    report = {
        "reconciles": SCRAMBLER.reconciles,
        "unused": {where: text for where, text in SCRAMBLER.prose.items() if where not in SCRAMBLER.used},
        "prose": len(SCRAMBLER.prose),
        "differences": SCRAMBLER.differences,
    }
    session.config.getoption("--scrambled-report").write_text(json.dumps(report, indent=1))
