"""Settings and fixtures of every test.

See docs/decisions/0179-two-runs-of-tests.md.
"""

from __future__ import annotations

import functools
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.control_plane import CLIENTS, PLANE, ControlPlane, missing_programs, provide_programs, start
from hypothesis import settings
from rewritten_tests import rewrite_tests

# Examples have no time limit, since a busy machine is not a failure. Every run draws the same examples, so each failure can be repeated.
settings.register_profile("diloco", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("diloco")


def pytest_configure(config: pytest.Config) -> None:
    """Let all learners of a session, and these processes, share what JAX compiles, and these processes what pytest rewrites. Those of xdist
    start later, and inherit the folder."""
    if not hasattr(config, "workerinput"):
        compiled = tempfile.mkdtemp(prefix="diloco-tests-jax-")
        config.add_cleanup(functools.partial(shutil.rmtree, compiled, ignore_errors=True))
        os.environ["JAX_COMPILATION_CACHE_DIR"] = compiled
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        if processes := getattr(config.option, "numprocesses", None):
            for chosen in config.args:
                rewrite_tests(config, config.invocation_params.dir / chosen.partition("::")[0], processes)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check that groups hold, and bring the programs of the control plane before the first test's time limit runs. hack/test.sh has done so
    already. What was imported stays to the end, so that the garbage collector need not look at it again."""
    gc.freeze()
    grouped = [item for item in session.items if item.get_closest_marker("xdist_group")]
    if getattr(session.config.option, "loadgroup", False) and not all("@" in item.nodeid for item in grouped):
        raise pytest.UsageError("pytest-xdist does not see the groups of tests, so each worker would start every control plane")
    tests = Path(__file__).parent
    folders = {part for item in session.items for part in item.path.relative_to(tests).parts}
    wanted = (*PLANE, *CLIENTS, *(("karpenter", "kueue") if "growth" in folders else ()))
    if missing_programs(wanted) and {"cluster", "e2e", "growth", "helm", "kube"} & folders:
        capture = session.config.pluginmanager.get_plugin("capturemanager")
        assert capture is not None, "pytest's own plugin"
        with capture.global_and_fixture_disabled():
            provide_programs(wanted)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real control plane that the tests of one process share. Each test uses its own namespace and removes the nodes it added."""
    with start(tmp_path_factory.mktemp("control-plane"), audit=True) as plane:
        yield plane
