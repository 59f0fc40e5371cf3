"""The public names of the data plane, which programs of users import: pinned here, and each with a docstring."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from types import ModuleType

import pytest

EXPORTS = {
    "diloco": [],
    "diloco.torch": ["Canonical", "LoopError", "ModuleStore", "ProgressLR", "Schedule", "Session", "Shard", "join", "schedule"],
    "diloco.jax": ["Canonical", "LoopError", "ProgressRate", "Schedule", "Session", "Shard", "TreeStore", "initialize", "join", "schedule"],
    "diloco.contract": [
        "BUNDLE_FILE",
        "Bundle",
        "Checkpoint",
        "ENDED_BY_PROGRAM",
        "ENDED_BY_TOKENS",
        "ENV_ACCELERATORS_PER_HOST",
        "ENV_ATTEMPT",
        "ENV_CLUSTER",
        "ENV_HOST",
        "ENV_HOSTS",
        "ENV_JOB_FILE",
        "ENV_LEADER_ADDRESS",
        "ENV_LISTEN_PORT",
        "ENV_LOCALITY",
        "ENV_POD_IP",
        "ENV_POOL",
        "ENV_PROCESSES_PER_HOST",
        "ENV_RELATIVE_SPEED",
        "ENV_STATE_DIR",
        "ENV_SYNCER_ADDRESS",
        "ENV_TERMINATION_LOG",
        "ENV_TLS_DIR",
        "ENV_UNIT",
        "Exit",
        "Grace",
        "HEARTBEAT",
        "JOB_FILE_KEY",
        "JobFile",
        "LEADER_PORT",
        "LastWords",
        "LearnerStates",
        "MOST_HELD_OUT_POINTS",
        "MOST_LOSS_POINTS",
        "MOST_PARTS",
        "MOST_PAUSE",
        "MOST_TOKENS",
        "MOUNT_JOB",
        "MOUNT_STATE",
        "MOUNT_TLS",
        "Merge",
        "MergeMethod",
        "OuterOptimizer",
        "Result",
        "SYNCER_PORT",
        "StartFrom",
        "TERMINATION_LOG",
        "TLS_IDENTITY_FILE",
        "TLS_ROOTS_FILE",
        "Training",
        "UnitResult",
        "copies_folder",
        "learner_host_name",
        "learner_identity",
        "operator_identity",
        "parse_last_words",
        "part_identity",
        "part_with_identity",
        "remote_snapshots",
        "syncer_host_name",
        "syncer_identity",
        "syncer_pod_name",
    ],
}


@pytest.fixture(params=sorted(EXPORTS))
def module(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(request.param)


def test_the_exports_are_the_pinned_ones(module: ModuleType) -> None:
    assert sorted(module.__all__) == sorted(EXPORTS[module.__name__])
    found: dict[str, object] = {}
    exec(f"from {module.__name__} import *", found)
    assert sorted(found.keys() - {"__builtins__"}) == sorted(EXPORTS[module.__name__])


def test_nothing_public_is_defined_without_being_exported(module: ModuleType) -> None:
    tree = ast.parse(source(module))
    defined = {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))} | set(constants(module))
    assert {name for name in defined if not name.startswith("_")} <= set(module.__all__)


def test_every_export_has_a_docstring(module: ModuleType) -> None:
    assert module.__doc__
    documented = constants(module)
    for name in EXPORTS[module.__name__]:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, name
        else:
            assert documented[name], f"{name} has no docstring below it"


@pytest.mark.parametrize(("of", "name"), [(of, name) for of, names in EXPORTS.items() for name in names])
def test_every_public_method_of_an_export_has_a_docstring(of: str, name: str) -> None:
    value = getattr(importlib.import_module(of), name)
    members = vars(value).items() if inspect.isclass(value) else []
    missing = [member for member, what in members if not member.startswith("_") and is_method(what) and not inspect.getdoc(what)]
    assert not missing


def is_method(value: object) -> bool:
    return inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod))


def source(module: ModuleType) -> str:
    assert module.__file__ is not None
    return Path(module.__file__).read_text(encoding="utf-8")


def constants(module: ModuleType) -> dict[str, str]:
    """The names that a module assigns, with the docstring below each."""
    body = ast.parse(source(module)).body
    found = {}
    for node, following in zip(body, [*body[1:], None], strict=True):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name):
            text = following.value if isinstance(following, ast.Expr) else None
            found[target.id] = text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
    return found
