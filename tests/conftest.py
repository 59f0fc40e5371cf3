"""Settings and fixtures of every test.

See docs/decisions/0127-runs-of-tests.md.
"""

from __future__ import annotations

import functools
import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from builders.control_plane import CLIENTS, PLANE, ControlPlane, missing_programs, provide_programs
from builders.exploration import XLA_FLAGS, examples
from builders.process_logs import last_lines
from hypothesis import settings
from rewritten_tests import rewrite_tests

CLUSTER, FRAMEWORKS, GROWTH = (f"{Path(__file__).parent / folder}/" for folder in ("cluster", "frameworks", "cluster/growth"))
"""Beginnings of the paths of their tests. To compare paths as such would cost every process a second for the 6,000 unit tests."""

BEGUN = pytest.StashKey[float]()
"""When the test began, seconds of the Unix epoch."""

# Examples have no time limit, since a busy machine is not a failure. Every run draws the same examples, so each failure can be repeated.
settings.register_profile("diloco", deadline=None, derandomize=True, print_blob=True, max_examples=examples(100))
settings.load_profile("diloco")
# For `make quick`, where a test does not say how many it needs.
settings.register_profile("quick", settings.get_profile("diloco"), max_examples=10)


def pytest_configure(config: pytest.Config) -> None:
    """Let all learners of a session, and these processes, share what JAX compiles, and these processes what pytest rewrites. Those of xdist
    start later, and inherit the folder."""
    if not hasattr(config, "workerinput"):
        compiled = tempfile.mkdtemp(prefix="diloco-tests-jax-")
        config.add_cleanup(functools.partial(shutil.rmtree, compiled, ignore_errors=True))
        os.environ["JAX_COMPILATION_CACHE_DIR"] = compiled
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)
        if processes := getattr(config.option, "numprocesses", None):
            for chosen in config.args:
                rewrite_tests(config, config.invocation_params.dir / chosen.partition("::")[0], processes)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every test below tests/cluster: `make test-cluster` runs it, `make test` does not. One process runs those that share a control
    plane: each would start its own, and nodes of one test would get the pods of another that ran beside it."""
    if str(item.path).startswith(CLUSTER):
        item.add_marker("cluster")
    if "control_plane" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.xdist_group("control-plane"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check that groups hold and that no framework was imported for nothing, and bring the programs of the control plane before the first
    test's time limit runs. hack/test-cluster.sh has done so already. What was imported stays to the end, so that the garbage collector need
    not look at it again."""
    gc.freeze()
    frameworks = {"torch", "jax", "transformers", "lightning", "datasets"} & sys.modules.keys()
    if frameworks and not any(str(item.path).startswith(FRAMEWORKS) for item in session.items):
        raise pytest.UsageError(
            f"{', '.join(sorted(frameworks))} was imported to collect tests outside tests/frameworks. Every process would pay for it: "
            "move the test that imports it there, or import it within the test (`python -X importtime` says who does)"
        )
    grouped = [item for item in session.items if item.get_closest_marker("xdist_group")]
    if getattr(session.config.option, "loadgroup", False) and not all("@" in item.nodeid for item in grouped):
        raise pytest.UsageError("pytest-xdist does not see the groups of tests, so each worker would start every control plane")
    growing = any(str(item.path).startswith(GROWTH) for item in session.items)
    wanted = (*PLANE, *CLIENTS, *(("karpenter", "kueue") if growing else ()))
    if any(item.get_closest_marker("cluster") for item in session.items) and missing_programs(wanted):
        capture = session.config.pluginmanager.get_plugin("capturemanager")
        assert capture is not None, "pytest's own plugin"
        with capture.global_and_fixture_disabled():
            provide_programs(wanted)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note when it begins: of what other tests have left, no log was written to since."""
    item.stash[BEGUN] = time.time()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failure what the processes of the test wrote last: learners, syncers, pods, control planes. A run of CI leaves no other
    trace of them."""
    report = yield
    if report.failed:
        folders = [item.config._tmp_path_factory.getbasetemp()]  # type: ignore[attr-defined]  # pytest's own, of every configuration
        folders += [Path(folder) for folder in [os.environ.get("DILOCO_NODES_SCRATCH")] if folder]
        report.sections += [(f"End of {name}", lines) for name, lines in last_lines(folders, item.stash[BEGUN])]
    return report


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real control plane that all tests share which ask for it, one after the other. Each uses its own namespace and removes the nodes it
    added. One that restarts a program leaves it ready. None installs the chart or removes the CRD: such tests start their own, and say why.
    """
    with ControlPlane(tmp_path_factory.mktemp("control-plane"), audit=True) as plane:
        yield plane
